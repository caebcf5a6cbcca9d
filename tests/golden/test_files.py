"""The golden files of a session: what was archived or exported once is read for ever."""

from __future__ import annotations

import hashlib

import limpet
from limpet.session.move.import_export import adopt_bundle, prove_bundle
from limpet.session.writer import writer_of
from tests.golden.files import BLOB, BUNDLE, KEY, SEALED, STATE, seal

DIGESTS = {
    BUNDLE.name: "44b995cceb7298b5f1719bd6548ae1de8be3434d810fd839b9a5970e8ac20957",
    SEALED.name: "caafb597918d2f63ec4189085cab8fd2718d8fef5a76526898fa7a827ec59140",
}


def test_the_files_are_those_that_were_written_then() -> None:
    """They are never changed."""
    for path in (BUNDLE, SEALED):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == DIGESTS[path.name]


async def test_the_plain_file_of_a_session_is_read_with_a_seal_and_without() -> None:
    """As an import, and as an archive that was written before there was a seal."""
    sealed = await seal()
    for source in (BUNDLE, sealed.at(BUNDLE)):
        async with limpet.open("memory://") as lp:
            await adopt_bundle(
                writer_of(lp.session(KEY)).journal, source, (await prove_bundle(source)).pins
            )
            await look(lp)
    async with limpet.open("memory://") as lp:
        await lp.import_(BUNDLE)
        await look(lp)


async def test_the_sealed_file_of_a_session_is_opened() -> None:
    """It has what the plain one has, to the byte."""
    sealed = await seal()
    assert sealed.opened(SEALED.read_bytes()) == BUNDLE.read_bytes()
    assert (await prove_bundle(sealed.at(SEALED))).pins == (await prove_bundle(BUNDLE)).pins != {}


async def look(lp: limpet.Limpet) -> None:
    s = await lp.get(KEY)
    assert (s.values, s.labels, s.phase) == (STATE, {"plan": "gold"}, "completed")
    texts = [event.data["text"] for event in s.events if event.type.endswith(".message")]
    assert texts == ["Which day?", STATE["said"]]
    assert await s.blobs.get(hashlib.sha256(BLOB).hexdigest()) == BLOB
    assert [each.trigger for each in (await s.history.checkpoints()).items][-1] == "then"
    assert (await lp.maintenance.verify()).ok
