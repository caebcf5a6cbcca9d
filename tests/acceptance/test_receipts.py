"""Receipts and proofs: what a store signed of a session, checked without the store."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Limpet, Proof, Receipt, Session
from limpet.errors import InvalidInput, ReceiptInvalid, SessionCorrupt
from limpet.security import receipt_check
from limpet.security.receipts import MerkleTree, hashed_key
from tests.support.keys import key_file

replace = msgspec.structs.replace
SECRET = "xq7canary"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return key_file(tmp_path / "masters")


async def said(lp: Limpet, events: int = 9) -> Session[Any]:
    s = await lp.create("support", "ada", "c1", actor="user:ada", state={"n": 0})
    for number in range(events):
        await s.append("note.made", {"text": f"{SECRET}-{number}-"}, inc={"n": 1})
    return s


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 33])
def test_every_leaf_leads_to_the_root_in_log_n_steps(size: int) -> None:
    """And to no other root: not from another place, not with a node more or less."""
    links = [bytes([number]) * 32 for number in range(size)]
    tree = MerkleTree(links)
    for index, link in enumerate(links):
        leaf, path = receipt_check.leaf_of(link), list(tree.path(index))
        assert len(path) <= size.bit_length()
        assert receipt_check.root_by_path(leaf, index, size, path) == tree.root
        with pytest.raises(receipt_check.NotValid):
            receipt_check.root_by_path(leaf, index, size, [*path, link])
        if path:
            other = receipt_check.root_by_path(leaf, index, size, [link, *path[1:]])
            assert other != tree.root
            with pytest.raises(receipt_check.NotValid):
                receipt_check.root_by_path(leaf, index, size, path[:-1])


async def test_a_receipt_holds_where_the_session_stands(url: str, keys: str) -> None:
    """Signed by the store's key, which stays the same."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
        receipt = await s.receipt()
        assert (receipt.uid, receipt.version, receipt.link) == (s.head.uid, s.version, s.head.link)
        assert receipt.key_hash == hashed_key(s.key, s.head.uid)
        limpet.check_receipt(receipt, public_key=lp.keys.public_key)
        limpet.check_receipt(receipt, public_key=lp._journal.provenance.seal.public_bytes)  # type: ignore[union-attr]
        await s.append("note.made", {})
        limpet.check_receipt(receipt, public_key=lp.keys.public_key)
        assert (await s.receipt()).version == receipt.version + 1


async def test_a_proof_shows_its_event_and_no_other(url: str, keys: str) -> None:
    """For each event, against the receipt; the texts of others are not in it."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
        receipt, key = await s.receipt(), lp.keys.public_key
        events = await s.read(limit=50)
        for event in events:
            proof = await s.prove(event.seq)
            limpet.check_receipt(receipt, proof, event, public_key=key)
            assert len(proof.path) <= 4
            shown = msgspec.msgpack.encode(proof)
            others = [e for e in events if e.seq != event.seq]
            assert not any([e.id.encode() in shown for e in others])
            assert shown.count(SECRET.encode()) <= 1


async def test_a_proof_of_an_earlier_version(url: str, keys: str) -> None:
    """The session went on; the proof is asked for with the version of the receipt."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
        receipt, key = await s.receipt(), lp.keys.public_key
        await s.append("note.made", {})
        with pytest.raises(ReceiptInvalid, match="another version"):
            limpet.check_receipt(receipt, await s.prove(3), public_key=key)
        proof = await s.prove(3, version=receipt.version)
        limpet.check_receipt(receipt, proof, public_key=key)
        with pytest.raises(InvalidInput, match="Pass one of"):
            await s.prove(99)


async def test_a_fork_proves_its_own_events(url: str, keys: str) -> None:
    """Its tree begins where its log does."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
        fork = await s.fork(id="fork")
        await fork.append("note.made", {"text": "mine"}, actor="user:ada")
        receipt = await fork.receipt()
        proof = await fork.prove(fork.version)
        limpet.check_receipt(receipt, proof, fork.events[-1], public_key=lp.keys.public_key)
        with pytest.raises(InvalidInput):
            await fork.prove(1)


async def test_completing_signs_a_receipt(url: str, keys: str) -> None:
    """It is returned from then on: signed at the time of the completion."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
        await s.complete({"done": True})
        kept = await lp._journal.provenance.seal.kept_receipt(s.head.uid)  # type: ignore[union-attr]
        assert kept is not None
        receipt = await s.receipt()
        assert receipt == msgspec.msgpack.decode(kept, type=Receipt) == await s.receipt()
        assert receipt.version == s.version
        limpet.check_receipt(receipt, public_key=lp.keys.public_key)


FORGED_RECEIPTS: dict[str, dict[str, Any]] = {
    "version": {"version": 3},
    "uid": {"uid": "other"},
    "link": {"link": bytes(32)},
    "root": {"root": bytes(32)},
    "key_hash": {"key_hash": bytes(32)},
    "signature": {"signature": bytes(64)},
    "signer": {"signer": "0" * 32},
}
FORGED_PROOFS: dict[str, dict[str, Any]] = {
    "body": {"body": b'{"data":{"text":"forged"}}'},
    "header": {"header": b'["id","note.made","user:eve",null,null,null,null]'},
    "time": {"at_us": 1},
    "seq": {"seq": 4},
    "salt": {"salt": bytes(16)},
    "previous": {"previous": bytes(32)},
    "size": {"size": 4, "floor": 6},
    "path": {"path": ()},
}


async def _signed(keys: str) -> tuple[Receipt, Proof, limpet.Event, str]:
    async with limpet.open("memory://", keys=keys) as lp:
        s = await said(lp)
        event = (await s.read(limit=50))[2]
        return await s.receipt(), await s.prove(3), event, lp.keys.public_key


@pytest.mark.parametrize("what", FORGED_RECEIPTS)
async def test_a_changed_receipt_does_not_check(keys: str, what: str) -> None:
    """Every field is signed."""
    receipt, _, _, key = await _signed(keys)
    with pytest.raises(ReceiptInvalid):
        limpet.check_receipt(replace(receipt, **FORGED_RECEIPTS[what]), public_key=key)


@pytest.mark.parametrize("what", FORGED_PROOFS)
async def test_a_changed_proof_does_not_check(keys: str, what: str) -> None:
    """Every field leads to the root."""
    receipt, proof, event, key = await _signed(keys)
    with pytest.raises(ReceiptInvalid):
        limpet.check_receipt(receipt, replace(proof, **FORGED_PROOFS[what]), public_key=key)
    limpet.check_receipt(receipt, proof, event, public_key=key)


@pytest.mark.parametrize(
    "changed", [{"data": {"text": "x"}}, {"actor": "user:eve"}, {"seq": 4}, {"at_us": 5}]
)
async def test_another_event_than_the_proven_one_is_refused(
    keys: str, changed: dict[str, Any]
) -> None:
    """Its content, its names, its place and its time count."""
    receipt, proof, event, key = await _signed(keys)
    with pytest.raises(ReceiptInvalid, match="other"):
        limpet.check_receipt(receipt, proof, replace(event, **changed), public_key=key)
    with pytest.raises(ReceiptInvalid, match="proof"):
        limpet.check_receipt(receipt, event=event, public_key=key)


async def test_the_key_of_another_store_is_refused(keys: str) -> None:
    """And so is a text that is none."""
    receipt, *_ = await _signed(keys)
    *_, other = await _signed(keys)
    for key in (other, "no key", b"x" * 32):
        with pytest.raises(ReceiptInvalid):
            limpet.check_receipt(receipt, public_key=key)


async def test_the_script_checks_without_limpet(keys: str, tmp_path: Path) -> None:
    """A copy of one file, the standard library and cryptography; an isolated interpreter."""
    receipt, proof, _, key = await _signed(keys)
    script = tmp_path / "check.py"
    script.write_bytes(Path(receipt_check.__file__).read_bytes())
    assert not re.search(r"(?m)^(import|from) limpet", script.read_text())
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "receipt.json").write_bytes(msgspec.json.encode(receipt))
    (tmp_path / "proof.json").write_bytes(msgspec.json.encode(proof))
    (tmp_path / "forged.json").write_bytes(msgspec.json.encode(replace(receipt, version=3)))

    def run(receipt_file: str, *more: str) -> subprocess.CompletedProcess[str]:
        asked = [sys.executable, "-I", "check.py", receipt_file, "--public-key", "key.pem", *more]
        return subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)

    good = run("receipt.json", "--proof", "proof.json")
    assert (good.returncode, good.stdout[:6]) == (0, "valid:"), good.stderr
    assert "event 3 note.made by user:ada" in good.stdout
    bad = run("forged.json")
    assert (bad.returncode, "changed or forged" in bad.stderr) == (1, True)


async def test_nothing_is_signed_of_a_log_that_was_changed(keys: str, tmp_path: Path) -> None:
    """A receipt is a statement about a whole chain."""
    import sqlite3

    url = f"sqlite:///{tmp_path}/support.db?sync=normal"
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    with sqlite3.connect(tmp_path / "support.db") as conn:
        conn.execute("UPDATE events SET actor = 'user:eve' WHERE seq = 3")
    conn.close()
    async with limpet.open(url, keys=keys) as lp:
        with pytest.raises(SessionCorrupt, match="does not follow its chain"):
            await lp.session(("support", "ada", "c1")).receipt()
