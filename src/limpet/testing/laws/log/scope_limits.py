"""Scope limits: each app, and each user in it, has a limited number of shared names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from limpet.errors import LimpetError, ScopeFull
from limpet.model import Prepared
from limpet.model.limits import SCOPE_BYTES_MAX, SCOPE_NAMES_MAX
from limpet.store.protocol import Store, scope_fields
from limpet.testing.commits import add, addition, create, creation, draft, key, load, refused

ADA, BOB, ELSE = key("1", user="ada"), key("1", user="bob"), key("1", app="else", user="ada")


def setting(numbers: Iterable[int], scope: str = "app") -> Prepared:
    """A draft that sets a name for each number."""
    return draft(set={f"{scope}:{number:04}": number for number in numbers})


class ScopeLimitLaws:
    async def test_there_is_room_for_so_many_names_and_no_more(self, store: Store) -> None:
        """One name too many is refused with its whole commit; changing a name is not."""
        await create(store, ADA)
        await add(store, ADA, setting(range(SCOPE_NAMES_MAX)))
        async with refused(store, ScopeFull) as info:
            await add(store, ADA, draft(set={"own": 1}), draft(set={"app:more": 1}))
        assert isinstance(info.value, ScopeFull)
        assert (info.value.size, info.value.size_max) == (SCOPE_NAMES_MAX + 1, SCOPE_NAMES_MAX)
        async with refused(store, ScopeFull):
            await store.commit([creation(BOB, {"app:more": 1})])
        made = await add(store, ADA, draft(inc={"app:0007": 1}))
        assert made.scopes["app:0007"].value == 8
        assert len(scope_fields((await load(store, ADA)).scopes)) == SCOPE_NAMES_MAX

    async def test_every_app_and_every_user_has_room_of_its_own(self, store: Store) -> None:
        """A full owner does not affect the others."""
        for each in (ADA, BOB, ELSE):
            await create(store, each)
        await add(store, ADA, setting(range(SCOPE_NAMES_MAX), "user"))
        async with refused(store, ScopeFull) as info:
            await add(store, ADA, draft(set={"user:more": 1}))
        assert (info.value.app, info.value.user) == ("shop", "ada")  # type: ignore[attr-defined]
        await add(store, ADA, draft(set={"app:more": 1}))
        for each in (BOB, ELSE):
            made = await add(store, each, draft(set={"user:more": 1, "app:more": 2}))
            assert made.head.version == 2

    async def test_a_deleted_name_makes_room(self, store: Store) -> None:
        """In an earlier commit or the same one, in any order; and the name may be set again."""
        await create(store, ADA)
        await add(store, ADA, setting(range(SCOPE_NAMES_MAX)))
        await add(store, ADA, draft(delete=["app:0000"]))
        await add(store, ADA, draft(set={"app:more": 1}))
        async with refused(store, ScopeFull):
            await add(store, ADA, draft(set={"app:0000": 1}))
        await add(store, ADA, draft(set={"app:0000": 1}), draft(delete=["app:more"]))
        async with refused(store, ScopeFull):
            await add(store, ADA, draft(delete=["app:0001"]), setting((5_000, 5_001)))
        seen = scope_fields((await load(store, ADA)).scopes)
        assert (len(seen), "app:0000" in seen, "app:more" in seen) == (SCOPE_NAMES_MAX, True, False)
        assert (await store.verify(None)).ok

    async def test_a_name_that_goes_and_comes_back_needs_no_more_room(self, store: Store) -> None:
        """Deleted and set again in one commit it is one name, also where no other would fit."""
        await create(store, ADA)
        await add(store, ADA, setting(range(SCOPE_NAMES_MAX)))
        made = await add(store, ADA, draft(delete=["app:0000"]), draft(set={"app:0000": 5}))
        assert made.scopes["app:0000"].value == 5
        await add(store, ADA, draft(delete=["app:0001"]))
        again = (draft(set={"app:new": 1}), draft(delete=["app:new"]), draft(set={"app:new": 2}))
        assert (await add(store, ADA, *again)).scopes["app:new"].value == 2
        assert len(scope_fields((await load(store, ADA)).scopes)) == SCOPE_NAMES_MAX

    async def test_commits_of_one_call_share_the_room(self, store: Store) -> None:
        """All or nothing: the second commit sees what the first leaves."""
        await create(store, ADA)
        await create(store, BOB)
        await add(store, ADA, setting(range(SCOPE_NAMES_MAX - 1)))
        async with refused(store, ScopeFull):
            await store.commit([addition(ADA, setting((5_000,))), addition(BOB, setting((5_001,)))])
        made = await store.commit(
            [addition(ADA, setting((5_000,))), addition(BOB, setting((5_000,)))]
        )
        assert made[1].scopes["app:5000"].version == 2

    async def test_racing_writers_do_not_pass_the_bound(self, store: Store) -> None:
        """Of many commits that each add a name, as many succeed as there is room for."""
        keys = [key(str(number), user=f"u{number}") for number in range(10)]
        for each in keys:
            await create(store, each)
        await add(store, keys[0], setting(range(SCOPE_NAMES_MAX - 4)))
        outcomes = await asyncio.gather(
            *(add(store, of, setting((5_000 + place,))) for place, of in enumerate(keys)),
            return_exceptions=True,
        )
        refusals = [each for each in outcomes if isinstance(each, LimpetError)]
        assert [type(each) for each in refusals] == [ScopeFull] * 6
        assert len(scope_fields((await load(store, keys[0])).scopes)) == SCOPE_NAMES_MAX

    async def test_there_is_room_for_so_many_bytes(self, store: Store) -> None:
        """Large values count too; a replaced value counts once."""
        await create(store, ADA)
        large = "x" * (SCOPE_BYTES_MAX // 3)
        for _ in range(4):
            await add(store, ADA, draft(set={"user:a": large}))
        async with refused(store, ScopeFull) as info:
            await add(store, ADA, *(draft(set={f"user:{name}": large}) for name in "bcd"))
        assert info.value.size_max == SCOPE_BYTES_MAX  # type: ignore[attr-defined]
        await add(store, ADA, draft(set={"user:small": 1}))
