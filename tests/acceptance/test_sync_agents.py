"""Agents, memory and setups without await."""

from __future__ import annotations

import pytest

import limpet

ADA = "user:ada"


def test_documents_setups_and_buffers_have_the_same_verbs() -> None:
    """Each is used in a script as it is used in a program, and refuses the same."""
    with limpet.open_sync("memory://") as lp:
        lp.agents.put("support", {"model": "small"}, actor=ADA)
        lp.vaults.put("payments", {"stripe": "env:STRIPE_KEY"}, actor=ADA)
        lp.permissions.put("p", {"tools": {"*": "deny"}}, actor=ADA)
        s = lp.create("support", "ada", agent="support")
        s.setup.attach(vaults=["payments"], permissions="p")
        assert s.setup.vaults() == {"payments@1": ("stripe",)}
        assert s.setup.check_permission("shell") == "deny"
        assert s.memory.session_state.write("a", expect=0).version == 1
        with pytest.raises(limpet.errors.MemoryConflict):
            s.memory.session_state.write("b", expect=0)
        assert s.memory.buffers()[0].name == "checkpoint"
        s.memory.session.put("mood", "calm")
        assert s.memory.session.get("mood") == "calm"
        assert lp.agents.delete("support", expect=1) is True
        assert [str(change) for change in s.setup.compare()] == [
            "agent support was removed (support@1)"
        ]
        lp.policies.gates("support", limpet.Gates(verdict="pass"))
        assert lp.policies.gates_of("support").verdict == "pass"
        assert s.runs.tree().edges == ()
