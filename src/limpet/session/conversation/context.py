"""The context window: what a model is shown of a conversation, within a budget of tokens.

A view: the log is untouched. Messages are kept or left out in groups: a call of a tool and its
outcome are in one, since no model accepts the one without the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import InsufficientTokenBudget, InvalidInput
from limpet.model import Key, described
from limpet.session.conversation.shapes import SHAPES, Message, Shape, render

Count: TypeAlias = Callable[[str], int]
Summarize: TypeAlias = Callable[[list[Message]], "str | Awaitable[str]"]
SUMMARY: Final = "Summary of what was said before: "
_CHARS_PER_TOKEN: Final = 4


class Context(msgspec.Struct, frozen=True):
    """The input for a model. `system` is empty where the API takes it among the messages."""

    system: str
    messages: list[dict[str, Any]]
    tokens: int
    dropped: int  # messages that did not fit


class _Group(msgspec.Struct):
    """Messages that are kept or left out together."""

    messages: list[Message]
    pinned: bool
    tokens: int = 0


async def compile_context(
    key: Key,
    messages: Sequence[Message],
    *,
    tokens: int | None,
    shape: Shape,
    count: Count | None = None,
    system: str,
    pinned: Iterable[int] = (),
    summarize: Summarize | None = None,
) -> Context:
    """The messages that fit, in the form of the API. Raises InvalidInput,
    InsufficientTokenBudget."""
    _check(tokens, shape, count, system)
    window = _Window(key, shape, count or estimate, system, tokens)
    kept, left = window.fit(_groups(messages, frozenset(pinned)))
    summary = ""
    if left and summarize is not None:
        summary = await _summary(summarize, left)
    return window.close(kept, left, summary)


class _Window:
    """A budget, and how it is measured."""

    def __init__(
        self, key: Key, shape: Shape, count: Count, system: str, budget: int | None
    ) -> None:
        self._key, self._shape, self._count = key, shape, count
        self._system, self._budget = system, budget

    def fit(self, groups: list[_Group]) -> tuple[list[_Group], list[_Group]]:
        """Return the groups that are kept, and those that are left out: pinned first, then the
        newest."""
        if self._budget is None:
            return groups, []
        for group in groups:
            group.tokens = self._measured(render(self._shape, "", group.messages))
        room = self._budget - self._measured(render(self._shape, self._system, ()))
        room -= sum(group.tokens for group in groups if group.pinned)
        kept = {id(group) for group in groups if group.pinned}
        for group in reversed([group for group in groups if not group.pinned]):
            room -= group.tokens
            if room < 0:
                break
            kept.add(id(group))
        return [g for g in groups if id(g) in kept], [g for g in groups if id(g) not in kept]

    def close(self, kept: list[_Group], left: list[_Group], summary: str) -> Context:
        """Render what is kept; while it is too much after all, the oldest goes."""
        while True:
            system, messages = self._rendered(kept, summary)
            tokens = self._measured((system, messages))
            if self._budget is None or tokens <= self._budget:
                break
            loose = [group for group in kept if not group.pinned]
            if len(loose) > 1:
                kept = [group for group in kept if group is not loose[0]]
                left.append(loose[0])
            elif summary:
                summary = ""  # better without it than without the newest
            else:
                break
        if self._budget is not None:
            newest = all(group.pinned for group in kept) and bool(left)
            if newest or tokens > self._budget:
                last = max(left, key=lambda group: group.messages[0].event.seq) if newest else None
                needed = tokens + (0 if last is None else last.tokens)
                raise InsufficientTokenBudget(self._key, self._budget, needed)
        return Context(system, messages, tokens, sum(len(group.messages) for group in left))

    def _rendered(self, kept: list[_Group], summary: str) -> tuple[str, list[dict[str, Any]]]:
        system = f"{self._system}\n\n{SUMMARY}{summary}".strip() if summary else self._system
        return render(self._shape, system, [m for group in kept for m in group.messages])

    def _measured(self, rendered: tuple[str, list[dict[str, Any]]]) -> int:
        system, messages = rendered
        texts = [msgspec.json.encode(message).decode() for message in messages]
        return sum(map(self._count, texts)) + (self._count(system) if system else 0)


def estimate(text: str) -> int:
    """About how many tokens a text has."""
    return max(1, -(-len(text) // _CHARS_PER_TOKEN))


def _groups(messages: Sequence[Message], pinned: frozenset[int]) -> list[_Group]:
    groups: list[_Group] = []
    for message in messages:
        event = message.event
        pin = event.seq in pinned or (event.data or {}).get("pinned") is True
        joins = groups and (
            message.role == "tool"
            or (message.role == "assistant" and groups[-1].messages[-1].role == "assistant")
        )
        if joins:
            groups[-1].messages.append(message)
            groups[-1].pinned = groups[-1].pinned or pin
        else:
            groups.append(_Group([message], pin))
    return groups


async def _summary(summarize: Summarize, left: list[_Group]) -> str:
    summary = summarize([message for group in left for message in group.messages])
    text = summary if isinstance(summary, str) else await summary
    if not isinstance(text, str):
        raise InvalidInput(f"summarize returned {described(text)}. Return a text.")
    return text


def _check(tokens: Any, shape: Any, count: Any, system: Any) -> None:
    if shape not in SHAPES:
        raise InvalidInput(f"there is no shape {shape!r}. Choose one of {', '.join(SHAPES)}.")
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise InvalidInput(f"tokens is a number above 0, or None for all, not {tokens!r}.")
    if count is not None and not callable(count):
        raise InvalidInput(f"count is {described(count)}. Pass a function of a text.")
    if not isinstance(system, str):
        raise InvalidInput(f"system is {described(system)}. Pass a text.")
