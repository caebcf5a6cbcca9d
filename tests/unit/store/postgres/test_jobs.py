"""Jobs: what another attempt still knows of the one before."""

from __future__ import annotations

from limpet.store.postgres.writing.jobs import PostgresJob
from limpet.testing.commits import addition, key


async def test_a_job_that_waited_for_keys_still_looks_for_repeats() -> None:
    """An answer that was lost before may have recorded its events: they must not be doubled."""
    job = PostgresJob([addition(key())])
    assert not job.again().search_ids
    job.resend()
    again = job.again()
    assert again is not job
    assert (again.search_ids, again.resent) == (True, True)
    assert all(draft.caller_chose_id for commit in again.commits for draft in commit.drafts)
    assert not again.answer.done()
