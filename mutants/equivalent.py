"""Mutants that no test can notice, each with the reason.

Named by module, function and change, not by line, so that the table outlives edits elsewhere. The
check reports an entry that fits no mutant any more.
"""

from __future__ import annotations

from typing import Final

# (module, function, change): why it is the same program, or differs in nothing we promise.
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "limpet.session.runs.delegation",
        "head_of",
        "heads = (await journal.store.heads(query, cursor=None, limit=1)).items"
        " -> heads = (await journal.store.heads(query, cursor=None, limit=2)).items",
    ): "The first of them is looked at: slower.",
    (
        "limpet.runtime.effects",
        "Effect",
        "occurrence: int = 0 -> occurrence: int = 1",
    ): "It is counted before it is used.",
    (
        "limpet.runtime.effects",
        "Effect.seconds",
        "return given if given is None or type(given) in (int, float) else -1.0 -> return given if given is None or type(given) in (int, float) else -2.0",
    ): "Anything below 0 is refused.",
    (
        "limpet.security.guard",
        "",
        "_REMEMBERED: Final = 4096 -> _REMEMBERED: Final = 4097",
    ): "How many answers are remembered is not promised.",
    (
        "limpet.security.guard",
        "Guard.decide",
        "self._revision = revision -> pass",
    ): "Answers are forgotten more often: slower.",
    (
        "limpet.security.roles",
        "RoleRules",
        "needs_newest_head = False -> needs_newest_head = True",
    ): "Heads are read more often: slower.",
    (
        "limpet.security.roles",
        "RoleRules",
        "revision = 0 -> revision = 1",
    ): "Roles never change, so the number says nothing.",
    (
        "limpet.security.isolation",
        "IsolationRules",
        "needs_newest_head = False -> needs_newest_head = True",
    ): "Heads are read more often: slower.",
    (
        "limpet.security.isolation",
        "IsolationRules",
        "revision = 0 -> revision = 1",
    ): "The rules never change, so the number says nothing.",
    (
        "limpet.security.isolation",
        "IsolationRules.decide",
        "head is None or resource.kind not in _OF_SESSIONS or (not is_isolated(head.facts))"
        " -> head is None or resource.kind not in _OF_SESSIONS",
    ): "Without rules of its own a session denies nothing that roles allow: slower.",
    (
        "limpet.security.isolation",
        "_is_admitted",
        "return _is_in_task(principal, 'read', head.facts) and (not _is_unknown_agent(principal, head.facts))"
        " -> return _is_in_task(principal, 'read!', head.facts) and (not _is_unknown_agent(principal, head.facts))",
    ): "Any action but a claim is answered alike.",
    (
        "limpet.security.isolation",
        "_is_unknown_agent",
        "return own is not None and own is _NONE -> return own is _NONE",
    ): "What is _NONE is not None.",
    (
        "limpet.runtime.run",
        "",
        "_TRIES: Final = 4 -> _TRIES: Final = 5",
    ): "How often the store is asked again is not promised.",
    (
        "limpet.runtime.run",
        "",
        "_PAUSE_SECONDS: Final = 0.05 -> _PAUSE_SECONDS: Final = 1.05",
    ): "How soon the store is asked again is not promised.",
    (
        "limpet.runtime.run",
        "Hold._renew",
        "await asyncio.sleep(_PAUSE_SECONDS) -> pass",
    ): "How soon the store is asked again is not promised.",
    (
        "limpet.runtime.run",
        "Hold.__init__",
        "self._until_ns = 0 -> self._until_ns = 1",
    ): "The end that follows at once is later.",
    (
        "limpet.runtime.run",
        "Hold.renewed",
        "self._until_ns = max(self._until_ns, since_ns + round(self._lease.lease_seconds * 1000000000.0)) -> self._until_ns = max(self._until_ns, since_ns + round(self._lease.lease_seconds * 1000000001.0))",
    ): "A nanosecond for each second: far below what clocks of two machines differ by.",
    (
        "limpet.runtime.run",
        "Hold.check",
        "driver.stop('lost') -> driver.stop('lost!')",
    ): "The run is stopped, and its closing commit is refused: the lease is lost.",
    (
        "limpet.runtime.run",
        "Hold._renew",
        "raise AssertionError('the last try returns or raises') -> pass",
    ): "Never reached: the last try returns or raises.",
    (
        "limpet.session.writer",
        "Loading.load",
        "verified = True -> verified = False",
    ): "Verified again at every try: slower, and no less safe.",
    (
        "limpet.session.writer",
        "Loading.load",
        "raise AssertionError('the last try returns or raises') -> pass",
    ): "Never reached: both handlers raise at the last try.",
    (
        "limpet.model.lease",
        "",
        "AHEAD_US: Final = 1000000 -> AHEAD_US: Final = 1000001",
    ): "How far ahead is too far is not promised to the microsecond.",
    (
        "limpet.model.lease",
        "is_leased",
        "return head.worker is not None and head.lease_us is not None and (now_us < head.lease_us)"
        " -> return head.worker is not None and now_us < head.lease_us",
    ): "A head with a worker has the end of its lease: only the type checker asks.",
    (
        "limpet.model.ops",
        "_Op",
        "frozen=True -> frozen=False",
    ): "No operation is of this class itself, and each says the same again.",
    (
        "limpet.model.ops",
        "_Op",
        "array_like=True -> array_like=False",
    ): "No operation is of this class itself, and each says the same again.",
    (
        "limpet.model.ops",
        "check",
        "len(path) > 1 -> len(path) >= 1",
    ): "A path of a name alone has no further steps to look at: slower.",
    (
        "limpet.model.ops",
        "_check_steps",
        "step.isprintable() or not any(map(is_lone, step)) -> not any(map(is_lone, step))",
    ): "Nothing printable is a lone surrogate: slower.",
    (
        "limpet.model.ops",
        "_apply_at",
        "ours[id(inner)] = inner -> pass",
    ): "A container is copied again by every operation in it, and the last copy stays: slower.",
    (
        "limpet.model.ops",
        "_changed",
        "raise AssertionError(op) -> pass",
    ): "Never reached: every kind of operation has its case.",
    (
        "limpet.store.plan",
        "Plan._add",
        "fold is None and commit.reuse -> commit.reuse",
    ): "Where another session lives under the key, the creation is refused either way.",
    (
        "limpet.store.plan",
        "Plan._add",
        "fold is None and commit.reuse -> fold is None",
    ): "Without reuse a deleted session was refused before: there is none to ask about.",
    (
        "limpet.store.plan",
        "Plan._add",
        "len(events) > 1 and is_run(fold, commit.drafts) -> "
        "len(events) > 2 and is_run(fold, commit.drafts)",
    ): "Two events are recorded one after the other: slower.",
    (
        "limpet.store.plan",
        "Plan.add",
        "self._scanned > records -> self._scanned >= records",
    ): "Records are looked through again, and the same is found in them.",
    (
        "limpet.store.plan",
        "Plan._add_plain",
        "fold = self.folds.get(key) or self._view.fold(key) -> fold = self.folds.get(key)",
    ): "The long way is taken, which ends the same.",
    (
        "limpet.store.plan",
        "Plan._add_plain",
        "commit.classless and head.facts and (head.schema_version is not None) -> head.facts and head.schema_version is not None",
    ): "The long way is taken, which ends the same.",
    (
        "limpet.store.plan",
        "Plan._add_plain",
        "commit.classless and head.facts and (head.schema_version is not None) -> commit.classless and head.facts",
    ): "The long way is taken, which ends the same.",
    (
        "limpet.store.plan",
        "Plan._add_plain",
        "commit.classless and head.facts and (head.schema_version is not None) -> commit.classless and head.schema_version is not None",
    ): "Without facts there is no version: asking for it costs time and finds None.",
    (
        "limpet.store.plan",
        "Plan._add_plain",
        "uid is not None and uid != head.uid -> uid != head.uid",
    ): "The long way is taken, which ends the same.",
    (
        "limpet.store.plan",
        "Plan._add_plain",
        "uid is not None and uid != head.uid -> uid is not None",
    ): "The long way is taken, which ends the same.",
    (
        "limpet.store.plan",
        "Plan._add",
        "seen = self._scopes(key) if fold is None and (not adopts) else None -> seen = self._scopes(key) if fold is None else None",
    ): "Shared names are read too, and nobody who adopts asks for them.",
    (
        "limpet.store.plan",
        "Plan._add",
        "len(events) > 1 and is_run(fold, commit.drafts) -> is_run(fold, commit.drafts)",
    ): "A run of one event is recorded as that event is: slower.",
    (
        "limpet.store.plan",
        "Plan._add",
        "len(events) > 1 and is_run(fold, commit.drafts) -> len(events) >= 1 and is_run(fold, commit.drafts)",
    ): "A run of one event is recorded as that event is: slower.",
    (
        "limpet.store.plan",
        "Plan._add",
        "events[place] is None and draft.caller_chose_id -> events[place] is None",
    ): "An id that was made just now is not among those that callers chose.",
    (
        "limpet.store.plan",
        "Plan._record",
        "draft.scoped and origin is None -> origin is None",
    ): "A draft that is not scoped has no operations on shared names.",
    (
        "limpet.store.plan",
        "Plan._check_retry",
        "first.caller_chose_id and first.origin is None and self._view.ended(commit.key, first.id) -> first.origin is None and self._view.ended(commit.key, first.id)",
    ): "No session had an id that was made just now.",
    (
        "limpet.store.plan",
        "Plan._repeat",
        "fold is None or (origin is not None and origin.seq > fold.head.version) -> fold is None",
    ): "What is beyond the end of the log is looked for in it, and not found: slower.",
    (
        "limpet.store.plan",
        "Plan._repeat",
        "event is None or event.processed is None -> event is None",
    ): "What is no input is looked for among the processed, and not found.",
    (
        "limpet.model.fold",
        "_record_any",
        "data = draft.data or EMPTY -> data = draft.data",
    ): "Only data that the head does not look into comes undecoded.",
    (
        "limpet.model.fold",
        "record",
        "now_us > at_us -> now_us >= at_us",
    ): "Equal times are the same time.",
    (
        "limpet.model.fold",
        "record_run",
        "not active and head.activity_of(draft.type) -> head.activity_of(draft.type)",
    ): "It is asked again, and changes nothing: slower.",
    (
        "limpet.store.coding.bodies",
        "_Fields",
        "frozen=True -> frozen=False",
    ): "It is made to be encoded, or decoded to be read: nothing changes it.",
    (
        "limpet.store.coding.bodies",
        "_Base",
        "frozen=True -> frozen=False",
    ): "It is made to be encoded, or decoded to be read: nothing changes it.",
    (
        "limpet.store.coding.files",
        "",
        "BLOCK_BYTES: Final = 2 ** 20 -> BLOCK_BYTES: Final = 2 ** 21",
    ): "Larger blocks are read as well; only the memory that they take differs.",
    (
        "limpet.store.coding.files",
        "",
        "_HEADER_BYTES_MAX: Final = 16384 -> _HEADER_BYTES_MAX: Final = 16385",
    ): "No header is near it.",
    (
        "limpet.store.coding.files",
        "_Header",
        "frozen=True -> frozen=False",
    ): "It is made to be encoded, or decoded to be read: nothing changes it.",
    (
        "limpet.store.coding.files",
        "FileSeal.header",
        "id = os.urandom(16).hex() -> id = os.urandom(17).hex()",
    ): "A longer number is just as unique.",
    (
        "limpet.store.coding.files",
        "_BlockReader.close",
        "super().close() -> pass",
    ): "The file is closed, which is what counts: whoever reads on fails there.",
    (
        "limpet.store.coding.files",
        "_BlockReader._next",
        "last and self._file.read(1) -> last and self._file.read(2)",
    ): "Whether one byte more is there or two is the same.",
    (
        "limpet.model.facts.running.requests",
        "overdue",
        "return {id: bool(r.get('otherwise')) for id, r in requests_in(facts).items() if 'answer' "
        "not in r and r.get('deadline_us', now_us + 1) <= now_us} -> return "
        "{id: bool(r.get('otherwise')) for id, r in requests_in(facts).items() if 'answer' not in "
        "r and r.get('deadline_us', now_us + 2) <= now_us}",
    ): "Without a deadline it is after now, however far.",
    (
        "limpet.runtime.requests",
        "approve",
        "occurrence = turn.records.occurrence('approve', name) -> occurrence = turn.records.occurrence('approve!', name)",
    ): "A label of the identity: the same in every run of the code.",
    (
        "limpet.runtime.requests",
        "approve",
        "id = identity(turn.id, 'approve', name, occurrence) -> id = identity(turn.id, 'approve!', name, occurrence)",
    ): "A label of the identity: the same in every run of the code.",
    (
        "limpet.runtime.requests",
        "ask",
        "occurrence = turn.records.occurrence('ask', name) -> occurrence = turn.records.occurrence('ask!', name)",
    ): "A label of the identity: the same in every run of the code.",
    (
        "limpet.runtime.requests",
        "ask",
        "id = identity(turn.id, 'ask', name, occurrence) -> id = identity(turn.id, 'ask!', name, occurrence)",
    ): "A label of the identity: the same in every run of the code.",
    (
        "limpet.runtime.requests",
        "request",
        "id = identity(id, 'instead', hashed) -> id = identity(id, 'instead!', hashed)",
    ): "A label of the identity: the same in every run of the code.",
    (
        "limpet.runtime.requests",
        "request",
        "records.add(event) -> pass",
    ): "Nothing of this run asks for it again: it pauses here.",
    (
        "limpet.runtime.requests",
        "answered",
        "turn.records.outcomes.add(id) -> pass",
    ): "The outcome that the end of the turn would add has the id of the one that is queued.",
}
