"""Laws of writing."""

from limpet.testing.laws.log.adopt import AdoptLaws
from limpet.testing.laws.log.commits import CommitLaws
from limpet.testing.laws.log.facts import FactLaws
from limpet.testing.laws.log.inputs import InputLaws
from limpet.testing.laws.log.races import RaceLaws
from limpet.testing.laws.log.repeats import RepeatLaws
from limpet.testing.laws.log.reuse import ReuseLaws
from limpet.testing.laws.log.scope_limits import ScopeLimitLaws
from limpet.testing.laws.log.times import TimeLaws

__all__ = [
    "AdoptLaws",
    "CommitLaws",
    "FactLaws",
    "InputLaws",
    "RaceLaws",
    "RepeatLaws",
    "ReuseLaws",
    "ScopeLimitLaws",
    "TimeLaws",
]
