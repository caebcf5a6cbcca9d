"""Certificates of erasure: what was forgotten, when and by whom, signed by the store."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import ErasureCertificate, Limpet
from limpet.errors import CertificateInvalid, SessionHasForks
from limpet.security import receipt_check
from tests.support.keys import key_file

CANARY = "xq7canary"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return key_file(tmp_path / "masters")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_store_url")
        return found
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?sync=normal"


async def filled(lp: Limpet, id: str = "c1") -> limpet.Session[Any]:
    s = await lp.create("support", "ada", id, state={"text": CANARY, "user:u": CANARY})
    await s.append("user.message", {"text": CANARY}, actor="user:ada")
    return s


async def key_owners(lp: Limpet) -> set[str]:
    ring = lp._journal.provenance.seal.ring  # type: ignore[union-attr]
    found, after = set(), None
    while rows := await ring.page("key", after):
        after = (rows[-1].owner, rows[-1].part)
        found |= {row.owner for row in rows}
    return found


async def test_a_session_is_certified(url: str, keys: str) -> None:
    """What it was is said by hashes, which its receipt has too; and by whom it was erased."""
    async with limpet.open(url, keys=keys) as lp:
        s = await filled(lp)
        receipt, public_key = await s.receipt(), lp.keys.public_key
        done = await lp.erase(s.key, actor="agent:privacy")
        assert done is not None
        made = done.certificate
        assert made is not None
        assert (made.subject, made.by, made.key_hash) == ("session", "agent:privacy", done.key_hash)
        assert (len(made.sessions), made.events, made.forks_kept) == (1, 2, 0)
        limpet.check_certificate(made, receipt, public_key=public_key)
        assert re.search(r"\bada\b", str(msgspec.to_builtins(made))) is None
        again = await lp.erase(s.key)
        assert again == done
        other = await (await filled(lp, "c2")).receipt()
        with pytest.raises(CertificateInvalid, match="not among those erased"):
            limpet.check_certificate(made, other, public_key=public_key)


async def test_a_user_is_certified(url: str, keys: str) -> None:
    """With every session, deleted ones too, and the names; and who came back is certified again."""
    async with limpet.open(url, keys=keys) as lp:
        s = await filled(lp)
        await filled(lp, "c2")
        await lp.delete("support", "ada", "c2")
        await s.memory.episodic.put("fact", CANARY, actor="agent:main")
        done = await lp.erase_user("support", "ada", actor="user:ada")
        made = done.certificate
        assert made is not None
        assert (made.subject, made.by, len(made.sessions)) == ("user", "the user", 2)
        assert (made.events, made.names) == (4, 1)
        assert made.documents == len(done.logs) >= 1
        limpet.check_certificate(made, public_key=lp.keys.public_key)
        assert (await lp.erase_user("support", "ada")).certificate == made
        await filled(lp, "c3")
        later = (await lp.erase_user("support", "ada")).certificate
        assert later is not None
        assert (later.at > made.at, len(later.sessions)) == (True, 1)
        await filled(lp, "c4")
        await lp.erase("support", "ada", "c4")
        last = (await lp.erase_user("support", "ada")).certificate  # only the name was left
        assert last is not None
        assert (last.sessions, last.events, last.names) == ((), 0, 1)
        limpet.check_certificate(last, public_key=lp.keys.public_key)


async def test_it_reaches_forks_memory_and_the_archive(url: str, keys: str, tmp_path: Path) -> None:
    """Their keys are destroyed, so that no copy of them opens, and the certificate counts them."""
    archive = f"file://{tmp_path}/archive"
    async with limpet.open(url, keys=keys, archive=archive) as lp:
        other = await filled(lp, "other")
        before = await key_owners(lp)
        s = await filled(lp)
        for layer in (s.memory.session, s.memory.episodic):
            await layer.put("fact", CANARY, actor="agent:main")
        await s.checkpoint()
        await s.share(other, "text", access="read", sync="snapshot")
        await s.fork(id="fork")
        await s.complete()
        await s.archive()
        with pytest.raises(SessionHasForks):
            await lp.erase(s.key)
        done = await lp.erase(s.key, forks="erase")
        assert done is not None
        assert done.certificate is not None
        assert (len(done.certificate.sessions), done.certificate.files) == (2, 1)
        assert done.certificate.documents >= 3  # also what was promoted
        kept = {head.uid for head in (await lp.list()).items}
        assert len(await key_owners(lp) - before - kept) <= 1  # one was made for nothing
        assert (await lp.maintenance.verify()).ok


async def test_memory_of_before_is_unreadable_in_a_copy(keys: str, tmp_path: Path) -> None:
    """Also what the session promoted, and what was removed with a deleted session before."""
    url = f"sqlite:///{tmp_path}/s.db?sync=normal"
    async with limpet.open(url, keys=keys) as lp:
        for id in ("c1", "c2"):
            s = await filled(lp, id)
            await s.memory.episodic.put("fact", CANARY, actor="agent:main")
            await s.complete()
        await lp.maintenance.backup(tmp_path / "backup.db")
        await lp.delete("support", "ada", "c2")
        await lp.erase("support", "ada", "c1")
        await lp.erase("support", "ada", "c2")
    how = {"keys": keys, "keyring": f"sqlite:///{tmp_path}/s.db-keys"}
    async with limpet.open(f"sqlite:///{tmp_path}/backup.db", **how) as lp:
        from limpet.store.pages import each_head
        from limpet.store.protocol import Query

        looked_at = 0
        async for head in each_head(lp._journal.store, Query(app="$$memory", reverse=False)):
            events = await lp._journal.store.read(
                head.key, after=0, limit=50, reverse=False, types=None
            )
            assert all([event.data is None for event in events])
            looked_at += 1
        assert looked_at >= 4


async def test_an_erasure_that_was_cut_short_is_certified_in_full(
    keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the rows are gone and nothing is signed: the next call knows what there
    was."""
    url = f"sqlite:///{tmp_path}/s.db?sync=normal"
    async with limpet.open(url, keys=keys) as lp:
        s = await filled(lp)

        def die(*_: Any) -> None:
            raise ConnectionAbortedError("killed")

        with monkeypatch.context() as patch:
            patch.setattr("limpet.security.certificates.signed", die)
            with pytest.raises(ConnectionAbortedError):
                await lp.erase(s.key, actor="agent:privacy")
    async with limpet.open(url, keys=keys) as lp:
        done = await lp.erase(s.key)
        assert done is not None
        assert done.certificate is not None
        assert (done.certificate.events, done.certificate.by) == (2, "agent:privacy")
        assert [each.uid for each in done.certificate.sessions] == [s.head.uid]


async def test_without_keys_there_is_no_certificate() -> None:
    """Nothing could sign it."""
    async with limpet.open("memory://") as lp:
        await filled(lp)
        done = await lp.erase("support", "ada", "c1")
        assert done is not None
        assert done.certificate is None
        assert (await lp.erase_user("support", "ada")).certificate is None


@pytest.mark.parametrize("name", ErasureCertificate.__struct_fields__)
async def test_a_changed_certificate_is_found(keys: str, name: str) -> None:
    """Every member is signed."""
    async with limpet.open("memory://", keys=keys) as lp:
        done = await lp.erase((await filled(lp)).key)
        assert done is not None
        assert done.certificate is not None
        made, public_key = done.certificate, lp.keys.public_key
    value = getattr(made, name)
    if isinstance(value, tuple):
        changed: Any = ()
    elif isinstance(value, int):
        changed = value + 1
    elif isinstance(value, bytes):
        changed = value[:-1] + bytes([value[-1] ^ 1]) if value else b"1"
    else:
        changed = "user" if name == "subject" else made.at.replace(year=1999)
        changed = f"{value}x" if name in ("by", "signer") else changed
    forged = msgspec.structs.replace(made, **{name: changed})
    with pytest.raises(CertificateInvalid):
        limpet.check_certificate(forged, public_key=public_key)


def test_the_command_saves_one_that_the_script_checks(tmp_path: Path) -> None:
    """With the standard library and `cryptography` alone, in a process that has no Limpet."""

    def run(*asked: str, code: int = 0) -> str:
        command = [sys.executable, *asked]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    keys = key_file(tmp_path / "masters")
    with limpet.open_sync(f"sqlite:///{tmp_path}/s.db", keys=keys) as lp:
        s = lp.create("support", "ada", "c1")
        (tmp_path / "receipt.json").write_bytes(msgspec.json.encode(s.receipt()))
        (tmp_path / "store.pem").write_text(lp.keys.public_key)
    erase = ("-m", "limpet.cli", "erase", "s.db", "support/ada/c1", "--yes")
    told = run(*erase, "--certificate", "c.json", code=4)
    assert "opened without them" in told or "keys" in told
    run(*erase, "--certificate", "c.json", "--keys", keys)
    script = str(Path(receipt_check.__file__))
    told = run("-I", script, "c.json", "--public-key", "store.pem")
    assert told.startswith("valid: a session was erased")
    run("-I", script, "c.json", "--public-key", "store.pem", "--receipt", "receipt.json")
    said = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps({**said, "by": "nobody"}))
    assert "not valid" in run("-I", script, "c.json", "--public-key", "store.pem", code=1)
