"""The typed verbs, as rules of the machine that drives two stores side by side.

They have sessions of their own, which untyped verbs meet too: what those are refused is compared.
The machine brings `both` (ask both stores, compare the answers), `sides` and their doors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from limpet import Key, Limpet, MigrationRegistry, Session, State, reducers

ACTOR = "test:typed"
ONE, TWO = Key("shop", "ada", "t1"), Key("shop", "bob", "t2")
MIGRATIONS = MigrationRegistry("agree")


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    plan: str = ""
    turns: int = 0
    log: Annotated[list[int], reducers.append] = []
    recent: Annotated[list[int], reducers.bounded_append(3)] = []
    tags: Annotated[dict[str, int], reducers.merge] = {}


class New(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str = ""
    turns: int = 0
    log: Annotated[list[int], reducers.append] = []
    recent: Annotated[list[int], reducers.bounded_append(3)] = []
    tags: Annotated[dict[str, int], reducers.merge] = {}


@MIGRATIONS.migration("1.0.0", "2.0.0")
def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    fields["goal"] = fields.pop("plan")
    return fields


keys = st.sampled_from([ONE, ONE, TWO])
classes = st.sampled_from([Old, Old, Old, New])
numbers = st.lists(st.integers(0, 9), max_size=3)
updates = st.fixed_dictionaries(
    {},
    optional={
        "plan": st.sampled_from(["x", "y"]),
        "goal": st.sampled_from(["x", "y"]),
        "turns": st.integers(0, 3) | st.just("wrong"),
        "log": numbers,
        "recent": numbers,
        "tags": st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=2),
    },
)


def typed(side: Any, key: Key, of: type[State], *, other: bool) -> Session[Any]:
    """The live object of a typed session, if there is one of this class; else a handle."""
    kept = None if other else side.typed.get((key, of))
    lp: Limpet = side.other if other else side.one
    return kept or lp.session(key, actor=ACTOR, state_type=of, migrations=MIGRATIONS)


class TypedRules(RuleBasedStateMachine):
    """Typed sessions are created, read, changed and brought forward."""

    both: Callable[..., Any]

    @rule(key=keys, of=classes, turns=st.integers(0, 3), other=st.booleans())
    def typed_create(self, key: Key, of: type[State], turns: int, other: bool) -> None:
        async def ask(side: Any) -> Any:
            lp: Limpet = side.other if other else side.one
            state: Any = of(turns=turns)
            made = await lp.create(key.app, key.user, id=key.id, state=state, actor=ACTOR)
            if not other:
                side.typed[key, of] = made
            return made

        self.both(ask)

    @rule(key=keys, of=classes, tail=st.integers(0, 5))
    def typed_get(self, key: Key, of: type[State], tail: int) -> None:
        async def ask(side: Any) -> Any:
            found: Any = await side.one.get(
                key, tail=tail, state_type=of, migrations=MIGRATIONS, actor=ACTOR
            )
            side.typed[key, of] = found
            return found

        self.both(ask)

    @rule(key=keys, of=classes, update=updates, other=st.booleans())
    def apply(self, key: Key, of: type[State], update: dict[str, Any], other: bool) -> None:
        self.both(lambda side: typed(side, key, of, other=other).apply(update))

    @rule(key=keys, of=classes, other=st.booleans())
    def typed_update(self, key: Key, of: type[State], other: bool) -> None:
        def one_more(state: Any) -> dict[str, Any]:
            return {"turns": state.turns + 1, "recent": [state.turns]}

        self.both(lambda side: typed(side, key, of, other=other).update(one_more))

    @rule(of=classes, one=updates, two=updates)
    def typed_commit(self, of: type[State], one: dict[str, Any], two: dict[str, Any]) -> None:
        """Two sessions in one commit, all or none."""

        async def ask(side: Any) -> Any:
            async with side.one.commit() as commit:
                commit.apply(typed(side, ONE, of, other=False), one)
                commit.apply(typed(side, TWO, of, other=False), two)
            return commit.events

        self.both(ask)

    @rule(key=keys, untyped=st.booleans(), name=st.sampled_from(["turns", "user:n"]))
    def plain_append(self, key: Key, untyped: bool, name: str) -> None:
        """An untyped handle changes no typed field, unless it says that it knows."""
        self.both(
            lambda side: side.one.session(key, actor=ACTOR, untyped=untyped).append(
                "user.said", set={name: 1}
            )
        )

    @rule(apply=st.booleans())
    def migrate(self, apply: bool) -> None:
        async def ask(side: Any) -> Any:
            plan = await side.one.maintenance.migrate(MIGRATIONS, New, apply=apply)
            fates = sorted((o.fate, o.sessions) for o in plan.outcomes)
            return (plan.ok, plan.target, plan.sessions, fates)

        self.both(ask)
