"""What is written: the same seeded text for every contestant.

Text is drawn from a word list with the skew of ordinary prose and mixed with ids, so that it
compresses about as conversations do and not as repeated letters would. Standard library only: the
neighbour's process imports this module from its own environment.
"""

from __future__ import annotations

import json
import random
from itertools import accumulate
from typing import Any, Final

_TEXT: Final = """
the of and to a in is you that it for was on are as with they at be this have from or one had by
but not what all were we when your can said there use an each which do how if will up other about
out many then them these so some her would make like him into time has look two more write go see
number way could people than first water been call who its now find long down day did get come made
may part order payment invoice refund customer account address delivery shipping package tracking
carrier warehouse return label replacement warranty charge card bank transfer currency balance
subscription plan upgrade renewal trial discount coupon receipt tax total amount price quantity
product catalogue description available stock supplier estimate schedule appointment calendar
meeting agenda minutes summary document report section paragraph sentence draft review comment
approve reject escalate assign ticket priority severity incident outage latency timeout retry error
exception stack trace database table index query migration backup restore snapshot replica failover
deploy release rollback version branch merge conflict commit test coverage build pipeline container
cluster node region network firewall certificate token secret credential permission policy audit
role owner member guest workspace project folder file upload download preview search filter sort
export import format column row header footer chart metric dashboard alert threshold average maximum
minimum percentile because although therefore however perhaps certainly usually sometimes never
always please thanks sorry welcome understand confirm cancel continue finish begin pause resume stop
morning afternoon evening yesterday today tomorrow week month quarter year deadline reminder
weather forecast temperature rain wind travel flight hotel booking reservation seat window aisle
passenger luggage passport visa embassy border train station platform ticket journey arrival
departure museum gallery restaurant breakfast dinner recipe ingredient kitchen garden window door
house street city village river mountain forest island coast harbour bridge road corner market
library school teacher student lesson exercise question answer example reason result method theory
"""
_WORDS: Final = _TEXT.split()
_DISTINCT_MAX: Final = 10_000
_WEIGHTS: Final = list(accumulate(1 / (rank + 4) for rank in range(len(_WORDS))))


class Writer:
    """An endless, reproducible author."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def prose(self, chars: int) -> str:
        """Sentences of words, exactly `chars` long."""
        text = ""
        while len(text) < chars:
            count = self._random.randint(5, 14)
            words = self._random.choices(_WORDS, cum_weights=_WEIGHTS, k=count)
            text += " ".join(words).capitalize() + self._random.choice((". ", ". ", "? ", ", "))
        return text[:chars]

    def tool_result(self) -> dict[str, Any]:
        """The data of one event, about 500 bytes as JSON."""
        return {
            "call_id": f"call_{self._random.getrandbits(96):024x}",
            "name": self._random.choice(("search", "lookup_order", "read_file", "run_query")),
            "arguments": {"query": self.prose(40), "limit": self._random.randint(1, 50)},
            "output": self.prose(310),
            "seconds": round(self._random.uniform(0.01, 9.0), 3),
        }

    def message(self) -> dict[str, str]:
        """A message of a conversation, about 500 bytes as JSON."""
        role = self._random.choice(("user", "assistant"))
        return {"role": role, "content": self.prose(460)}


def tool_results(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """The payloads of a run of appends. A long run repeats them: nobody compresses across rows."""
    writer = Writer(seed)
    distinct = [writer.tool_result() for _ in range(min(count, _DISTINCT_MAX))]
    return [distinct[number % _DISTINCT_MAX] for number in range(count)]


def messages(count: int, seed: int = 1) -> list[dict[str, str]]:
    """The payloads of a conversation."""
    writer = Writer(seed)
    return [writer.message() for _ in range(count)]


def changes(step: int) -> dict[str, Any]:
    """The three names of state that an append sets."""
    return {"step": step, "status": "waiting" if step % 3 else "running", "cost": step * 0.0125}


def size(value: Any) -> int:
    """The bytes of a payload as compact JSON: what anybody has to store at least."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
