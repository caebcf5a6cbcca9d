"""What is mutated, and the tests that have to notice: the nearest and quickest first."""

from __future__ import annotations

from typing import Final

_MODEL: Final = "tests/unit/model"
_STORE: Final = "tests/unit/store"
_RUNTIME: Final = "tests/unit/runtime"

# By module: files of tests. Those of their tests that need a server are left out.
TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "limpet.model.chain": (
        f"{_MODEL}/test_chain.py",
        "tests/golden",
    ),
    "limpet.model.values": (
        f"{_MODEL}/test_canonical.py",
        f"{_MODEL}/diff",
        "tests/property/test_diff.py",
        "tests/golden",
    ),
    "limpet.model.fold": (
        f"{_MODEL}/test_fold.py",
        f"{_MODEL}/test_head.py",
        "tests/property/test_flat.py",
        "tests/property/test_fold.py",
        f"{_STORE}/test_verify.py",
        f"{_STORE}/test_scopes.py",
        f"{_STORE}/test_plan.py",
        "tests/contract/test_stores.py",
        "tests/acceptance/test_unreadable.py",
    ),
    "limpet.model.head": (
        f"{_MODEL}/test_head.py",
        f"{_MODEL}/test_fold.py",
        f"{_MODEL}/test_phases.py",
        f"{_MODEL}/test_due.py",
        f"{_MODEL}/test_lease.py",
        "tests/property/test_fold.py",
        "tests/property/test_life.py",
        "tests/acceptance/test_work.py",
        "tests/contract/test_stores.py",
    ),
    "limpet.model.lease": (
        f"{_MODEL}/test_lease.py",
        f"{_MODEL}/test_due.py",
        "tests/acceptance/test_work.py",
        "tests/contract/test_stores.py",
    ),
    "limpet.store.memory.tables": (
        "tests/acceptance/test_work.py",
        "tests/contract/test_stores.py",
    ),
    "limpet.store.plan": (
        f"{_STORE}/test_plan_shared.py",
        "tests/contract/test_stores.py",
        f"{_STORE}/test_plan.py",
        "tests/acceptance/test_commit.py",
        "tests/acceptance/test_repeated.py",
        "tests/acceptance/test_untyped_handles.py",
        "tests/acceptance/test_update_reads.py",
        "tests/acceptance/test_unreadable.py",
        "tests/acceptance/test_work.py",
        "tests/acceptance/test_concurrency.py",
    ),
    "limpet.model.ops": (
        f"{_MODEL}/test_ops.py",
        f"{_MODEL}/test_inverse.py",
        f"{_MODEL}/test_events.py",
        f"{_MODEL}/test_fold.py",
        "tests/property/test_fold.py",
        "tests/property/test_replace.py",
        "tests/golden",
        f"{_MODEL}/diff",
        "tests/acceptance/test_bad_input.py",
    ),
    "limpet.store.coding.bodies": (
        f"{_STORE}/test_bodies.py",
        f"{_STORE}/sqlite/test_snapshots.py",
        f"{_STORE}/test_scopes.py",
        "tests/golden",
        "tests/acceptance/test_unreadable.py",
    ),
    "limpet.store.coding.files": (
        f"{_STORE}/test_files.py",
        "tests/acceptance/test_sealed_files.py",
        "tests/golden/test_files.py",
    ),
    "limpet.model.facts.running.budgets": (
        f"{_MODEL}/test_budgets.py",
        "tests/property/test_budgets.py",
        "tests/unit/runtime/test_children.py",
        "tests/acceptance/test_budgets.py",
        "tests/acceptance/test_nested.py",
    ),
    "limpet.model.facts.running.children": (
        f"{_MODEL}/test_budgets.py",
        "tests/unit/runtime/test_children.py",
        "tests/acceptance/test_nested.py",
        "tests/acceptance/test_leaving.py",
        "tests/acceptance/test_kinship.py",
    ),
    "limpet.model.facts.creation": (
        "tests/acceptance/test_forked_limits.py",
        "tests/acceptance/test_history.py",
        "tests/property/test_histories.py",
    ),
    "limpet.runtime.turn": (
        "tests/unit/runtime/test_children.py",
        "tests/acceptance/test_budgets.py",
    ),
    "limpet.runtime.managed_tools": (
        "tests/acceptance/test_managed_tools.py",
        "tests/acceptance/test_managed_hostile.py",
        "tests/acceptance/test_nested.py",
        "tests/acceptance/test_kinship.py",
    ),
    "limpet.session.runs.delegation": (
        "tests/acceptance/test_leaving.py",
        "tests/acceptance/test_budgets.py",
        "tests/unit/runtime/test_children.py",
        "tests/unit/runtime/test_endings.py",
        "tests/acceptance/test_kinship.py",
    ),
    "limpet.model.facts.running.requests": (
        f"{_MODEL}/test_requests.py",
        f"{_RUNTIME}/test_requests.py",
        "tests/acceptance/test_answered_once.py",
        "tests/property/test_facts.py",
        f"{_RUNTIME}/test_effects.py",
        f"{_RUNTIME}/test_vocabulary.py",
        "tests/acceptance/test_context.py",
    ),
    "limpet.runtime.requests": (
        f"{_RUNTIME}/test_requests.py",
        "tests/acceptance/test_answered_once.py",
        f"{_RUNTIME}/test_effects.py",
        f"{_RUNTIME}/test_turns.py",
        "tests/acceptance/test_bad_arguments.py",
    ),
    "limpet.runtime.wake": (
        f"{_RUNTIME}/test_requests.py",
        "tests/acceptance/test_answered_once.py",
        f"{_RUNTIME}/test_turns.py",
        f"{_RUNTIME}/test_effects.py",
        f"{_RUNTIME}/test_children.py",
        f"{_RUNTIME}/test_traces.py",
        f"{_RUNTIME}/test_defects.py",
        f"{_RUNTIME}/test_endings.py",
        f"{_RUNTIME}/test_worker.py",
    ),
    "limpet.session.writer": (
        "tests/acceptance/test_migrating_races.py",
        "tests/acceptance/test_evolution.py",
        "tests/acceptance/test_migrating_damage.py",
        "tests/acceptance/test_migrate.py",
        "tests/property/test_loading.py",
        "tests/acceptance/test_rolling_deploy.py",
        "tests/acceptance/test_logging.py",
        "tests/acceptance/test_typed_sessions.py",
    ),
    "limpet.runtime.run": (
        f"{_RUNTIME}/test_lease_guard.py",
        f"{_RUNTIME}/test_worker.py",
    ),
    "limpet.runtime.effects": (
        f"{_RUNTIME}/test_effects.py",
        f"{_RUNTIME}/test_lease_guard.py",
        f"{_RUNTIME}/test_defects.py",
        f"{_RUNTIME}/test_endings.py",
        f"{_RUNTIME}/test_vocabulary.py",
        f"{_RUNTIME}/test_turns.py",
        f"{_RUNTIME}/test_children.py",
        "tests/acceptance/test_tools_use.py",
    ),
    "limpet.model.facts.running.setup": (
        "tests/acceptance/test_tools_use.py",
        f"{_MODEL}/test_phases.py",
        "tests/acceptance/test_tools.py",
        "tests/acceptance/test_resumption.py",
    ),
    "limpet.session.life.tools": (
        "tests/acceptance/test_tools_use.py",
        "tests/acceptance/test_tools.py",
        "tests/acceptance/test_resumption.py",
        "tests/acceptance/test_integrity.py",
    ),
    "limpet.session.life.archive": (
        "tests/acceptance/test_archive.py",
        "tests/fault/test_life_steps.py",
        "tests/acceptance/test_sealed_files.py",
    ),
    "limpet.session.life.sweep": (
        "tests/acceptance/test_sweep.py",
        "tests/acceptance/test_archive.py",
        "tests/acceptance/test_life.py",
    ),
    "limpet.security.roles": (
        "tests/unit/security/test_policies.py",
        "tests/unit/security/test_guard.py",
        "tests/acceptance/test_isolation.py",
        "tests/acceptance/test_access.py",
        "tests/acceptance/test_access_matrix.py",
    ),
    "limpet.security.guard": (
        "tests/unit/security/test_guard.py",
        "tests/acceptance/test_attacks.py",
        "tests/acceptance/test_access.py",
        "tests/acceptance/test_policies.py",
        "tests/acceptance/test_audit.py",
        "tests/acceptance/test_isolation.py",
    ),
    "limpet.security.isolation": (
        "tests/unit/security/test_isolation_rules.py",
        "tests/acceptance/test_isolation.py",
        "tests/acceptance/test_attacks.py",
    ),
    "limpet.security.view": (
        "tests/unit/security/test_view.py",
        "tests/property/test_view.py",
        "tests/property/test_hidden_fields.py",
        "tests/acceptance/test_isolation.py",
    ),
    "limpet.security.guarded_store": (
        "tests/unit/security/test_guard.py",
        "tests/acceptance/test_attacks.py",
        "tests/acceptance/test_isolation.py",
        "tests/acceptance/test_access.py",
        "tests/acceptance/test_policies.py",
        "tests/acceptance/test_owner_moves.py",
        "tests/acceptance/test_served_verbs.py",
        "tests/contract/test_guarded.py",
        "tests/acceptance/test_access_matrix.py",
    ),
    "limpet.security.keys": (
        "tests/property/test_decoders.py",
        "tests/golden/test_keys.py",
        "tests/fault/test_keys.py",
        "tests/fault/test_sealed_tables.py",
        "tests/contract/test_keys.py",
        "tests/acceptance/test_receipts.py",
        "tests/acceptance/test_certificates.py",
    ),
    "limpet.security.masters": (
        "tests/property/test_decoders.py",
        "tests/fault/test_keys.py",
        "tests/acceptance/test_cli_keys.py",
    ),
    "limpet.session.tokens": ("tests/acceptance/test_tokens.py",),
    "limpet.store.remote.packing": (
        "tests/acceptance/test_sealed_calls.py",
        "tests/property/test_decoders.py",
        "tests/acceptance/test_serving.py",
    ),
    "limpet.session.performed": ("tests/acceptance/test_served_verbs.py",),
}
# Every store calls these as the memory store does: files would only tell the same again.
_ON_MEMORY: Final = frozenset(
    (
        "limpet.model.fold",
        "limpet.model.head",
        "limpet.model.facts.running.setup",
        "limpet.model.lease",
        "limpet.model.facts.running.budgets",
        "limpet.runtime.turn",
        "limpet.runtime.effects",
        "limpet.runtime.run",
        "limpet.runtime.managed_tools",
        "limpet.session.life.tools",
        "limpet.store.memory.tables",
        "limpet.store.plan",
        "limpet.model.facts.running.requests",
        "limpet.runtime.requests",
        "limpet.runtime.wake",
        "limpet.security.isolation",
        "limpet.security.view",
    )
)


def tests(module: str) -> list[list[str]]:
    """The arguments for pytest, run by run: most mutants die in the nearest file, on memory."""
    nearest, *rest = TARGETS[module]
    runs = [["-m", "quick", nearest]]
    if rest:  # without a file, pytest would run all there are
        runs.append(["-m", "quick", *rest])
    if module not in _ON_MEMORY:
        runs.append(["-m", "stores", "-k", "not postgres", nearest, *rest])
    return runs
