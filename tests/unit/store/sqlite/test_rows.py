"""Rows of events: what is written the short way is what the usual way writes."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from limpet.model import Draft, Fold, Key, blank, record
from limpet.store.cache import CachedSession
from limpet.store.coding.codec import Codec
from limpet.store.sqlite import rows
from limpet.testing.commits import ready

ids = st.sampled_from([None, "chosen", "01890A5D-AC96-774b-bcce-b302099a8057"])
drafts = st.builds(
    Draft,
    type=st.sampled_from(["a.b", "user.said"]),
    data=st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.just("x" * 2_000)),
    id=ids,
    cause=ids,
    wake_id=ids,
    input=st.booleans(),
)


@given(drafts, st.integers(1, 2**40))
@example(Draft(type="a.b"), 2**40)
@example(Draft(type="a.b", id="chosen"), 1)
@example(Draft(type="a.b", id="01890A5D-AC96-774b-bcce-b302099a8057"), 1)
@example(Draft(type="a.b", wake_id="w"), 1)
@example(Draft(type="a.b", data={"n": "x" * 2_000}), 1)
def test_a_plain_row_is_the_usual_row(draft: Draft, pos: int) -> None:
    """Every column, whatever the draft."""
    fold = Fold(blank(Key("a", "u", "s"), "u", 1))
    _, rec = record(fold, ready(draft), 5, b"s" * 16)
    args = (pos, CachedSession(7, fold, 0, 0, 0), rec, Codec())
    assert rows.event_row(*args) == rows._any_row(*args)
