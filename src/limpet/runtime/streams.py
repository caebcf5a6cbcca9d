"""Streams: an answer that followers see while it is made, and that is recorded as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from limpet.errors import InvalidInput
from limpet.model import Draft, described
from limpet.model.facts.running.steps import step_recorded
from limpet.runtime.budget import Reservation
from limpet.runtime.run import TurnRun
from limpet.runtime.turn_log import args_hash, identity


class TextStream:
    """One call of turn.stream."""

    def __init__(self, turn: TurnRun, name: str, occurrence: int, *, say: bool) -> None:
        self._turn, self._name, self._occurrence, self._say = turn, name, occurrence, say
        self.id = identity(turn.id, "stream", name, occurrence)
        self._more: dict[str, Any] = {}

    @property
    def recorded(self) -> str | None:
        """The whole text, if an earlier run has recorded it."""
        records = self._turn.records
        if (event := records.events.get(self.id)) is not None:
            return str(event.data["text"])
        step = records.steps.get((f"stream:{self._name}", self._occurrence))
        return None if step is None else str(step.data["result"])

    async def drop(self, pieces: Any) -> None:
        """The pieces are not needed: let go of what makes them."""
        for name in ("aclose", "close"):
            close = getattr(pieces, name, None)
            if callable(close):
                ending = close()
                if name == "aclose":
                    await ending
                return

    async def run(
        self, pieces: AsyncIterable[Any] | Iterable[Any], reservation: Reservation
    ) -> str:
        """Hand on each piece, and record the whole, with what was used of the reservation."""
        texts: list[str] = []
        with self._turn.pauses.inside(f"the stream {self._name!r}"):
            async for piece in _each(pieces):
                self._turn.driver.check()
                text = self._text(piece)
                if text:
                    self._publish(text, len(texts))
                    texts.append(text)
        whole = "".join(texts)
        await self._record(whole, reservation)
        return whole

    def _text(self, piece: Any) -> str:
        if isinstance(piece, str):
            return piece
        if not isinstance(piece, Mapping):
            raise InvalidInput(f"a piece of a stream is a text or a dict, not {described(piece)}.")
        for name in ("usage", "cost", "model"):
            if piece.get(name) is not None:
                self._more[name] = piece[name]
        return str(piece.get("text") or "")

    def _publish(self, text: str, index: int) -> None:
        """To followers, in this process and in others; `attempt` says which run it is of."""
        turn = self._turn
        draft = Draft(type="agent.message", data={"text": text, "index": index}, id=self.id)
        turn.session.writer.publish(turn.log.prepare(draft), turn.attempt)

    async def _record(self, whole: str, reservation: Reservation) -> None:
        turn = self._turn
        cost, usage = self._more.get("cost"), self._more.get("usage")
        tokens = None if usage is None else _tokens(usage)
        if self._say:  # what the message says is counted with it
            cost, tokens = (None if used is None else 0 for used in (cost, tokens))
        reservation.settle_at(cost, tokens)
        if self._say:
            source = {"stream": self._name, "occurrence": self._occurrence}
            data = {"text": whole, **source, **self._more}
            draft = Draft(type="agent.message", data=data, id=self.id)
        else:
            name, hashed = f"stream:{self._name}", args_hash()
            draft = step_recorded(self.id, name, self._occurrence, hashed, whole)
        event, *_ = await turn.log.write(draft, *reservation.settling())
        turn.records.add(event)


def _tokens(usage: Any) -> int | None:
    """The tokens that a model says it used; None if it does not say."""
    if not isinstance(usage, Mapping):
        return None
    counts = [usage.get(name, 0) for name in ("input", "output")]
    return sum(counts) if all([type(count) is int for count in counts]) else None


async def _each(pieces: Any) -> AsyncIterator[Any]:
    if hasattr(pieces, "__aiter__"):
        async for piece in pieces:
            yield piece
    elif isinstance(pieces, Iterable):
        for piece in pieces:
            yield piece
    else:
        raise InvalidInput(f"a stream takes an iterator of pieces, not {described(pieces)}.")
