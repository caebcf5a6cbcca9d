"""Laws of leases."""

from limpet.testing.laws.work.closing import CloseLaws
from limpet.testing.laws.work.lease_reasons import LeaseReasonLaws
from limpet.testing.laws.work.leases import ClaimLaws, SharedWorkLaws
from limpet.testing.laws.work.locks import LockLaws
from limpet.testing.laws.work.retries import RetryLaws
from limpet.testing.laws.work.setback import Leap, SetBackLaws

__all__ = ["Leap", "SetBackLaws", "SharedWorkLaws", "WorkLaws"]


class WorkLaws(ClaimLaws, RetryLaws, LeaseReasonLaws, LockLaws, CloseLaws):
    """For stores with leases. A store without the suite's clock overrides `age`."""
