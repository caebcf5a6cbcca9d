"""The command line with keys: --keys and LIMPET_KEYS, keys, receipt, verify --against."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.command import run


def told(here: Path, *asked: str, code: int = 0, keys: str | None = "file") -> str:
    """What a command prints into a pipe."""
    with patch.dict(os.environ):
        os.environ.pop("LIMPET_KEYS", None)
        if keys is not None:
            os.environ["LIMPET_KEYS"] = f"file://{here}/masters"
        done = run(here, *asked)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def here(tmp_path: Path) -> Path:
    told(tmp_path, "keys", "new", "masters", keys=None)
    told(tmp_path, "create", "s.db", "support/ada/c1")
    told(tmp_path, "send", "s.db", "support/ada/c1", "xq7canary")
    return tmp_path


def test_commands_read_and_write_with_keys(here: Path) -> None:
    """By the variable or the option; without, bodies are not shown and nothing is written."""
    assert (here / "masters").stat().st_mode & 0o777 == 0o600
    assert "xq7canary" in told(here, "log", "s.db", "support/ada/c1")
    option = ("--keys", f"file://{here}/masters")
    assert "xq7canary" in told(here, "log", "s.db", "support/ada/c1", *option, keys=None)
    assert "xq7canary" not in told(here, "log", "s.db", "support/ada/c1", keys=None)
    assert "without keys" in told(here, "send", "s.db", "support/ada/c1", "x", keys=None, code=4)
    assert b"xq7canary" not in b"".join([file.read_bytes() for file in here.glob("s.db*")])
    assert "nothing is wrong" in told(here, "verify", "s.db")


def test_a_sealed_store_that_is_verified_without_keys_is_not_called_damaged(here: Path) -> None:
    """It asks for the keys; advice to restore a backup is for damage."""
    said = told(here, "verify", "s.db", keys=None, code=1)
    assert "Sealed bodies were not read, and nothing else is wrong" in said
    assert "pass --keys" in said
    assert "restore" not in said


def test_a_sealed_session_without_keys_is_not_called_damaged_without_a_word_about_them(
    here: Path,
) -> None:
    """A file asks for the keys and for nothing else; what is folded cannot tell, and names both."""
    said = told(here, "export", "s.db", "support/ada/c1", "c1.limpet", keys=None, code=3)
    assert "Pass --keys (or LIMPET_KEYS)." in " ".join(said.split())
    assert "restore" not in said
    said = told(here, "move", "s.db", "support/ada/c1", "other.db", keys=None, code=3)
    assert "If the store is sealed, pass --keys (or LIMPET_KEYS)." in " ".join(said.split())


def test_a_copy_without_its_ring_says_how_to_name_it(here: Path) -> None:
    """Rather than to wait for a key service; and a store without keys is not told to wait, too."""
    told(here, "backup", "s.db", "copy.db")
    alone = told(here, "log", "copy.db", "support/ada/c1", code=4)
    assert "is missing" in alone
    assert "name where it is (--keyring)." in " ".join(alone.split())
    ring = ("--keyring", f"sqlite:///{here}/s.db-keys")
    assert "xq7canary" in told(here, "log", "copy.db", "support/ada/c1", *ring)
    unlocked = told(here, "send", "s.db", "support/ada/c1", "x", keys=None, code=4)
    assert "Pass --keys (or LIMPET_KEYS) to write." in " ".join(unlocked.split())
    assert "key service" not in alone + unlocked


def test_keys_are_rotated(here: Path) -> None:
    """A new master at the end of the file, then the ring; the old one can go."""
    old = (here / "masters").read_text()
    told(here, "keys", "new", "masters")
    assert json.loads(told(here, "keys", "status", "s.db", "--json"))["pending"] == 2
    assert json.loads(told(here, "keys", "rotate", "s.db", "--json"))["rotated"] == 2
    assert "rotated" in told(here, "keys", "status", "s.db")
    new = (here / "masters").read_text().removeprefix(old)
    (here / "masters").write_text(new)
    assert "xq7canary" in told(here, "log", "s.db", "support/ada/c1")
    assert "opened without them" in told(here, "keys", "status", "s.db", keys=None, code=4)


def test_a_restore_with_keys_is_accepted(here: Path) -> None:
    """Else the store looks as if it were rolled back."""
    told(here, "backup", "s.db", "copy.db")
    told(here, "send", "s.db", "support/ada/c1", "more")
    told(here, "restore", "copy.db", "s.db", "--replace", keys=None)
    assert "rolled back" in told(here, "verify", "s.db", code=1)
    told(here, "restore", "copy.db", "s.db", "--replace")
    assert "nothing is wrong" in told(here, "verify", "s.db")


def test_a_data_key_is_renewed(here: Path) -> None:
    """Of one session; what was said before is still shown."""
    assert "data key 2" in told(here, "keys", "renew", "s.db", "support/ada/c1")
    told(here, "send", "s.db", "support/ada/c1", "xq8canary")
    assert "xq7canary" in (log := told(here, "log", "s.db", "support/ada/c1"))
    assert "xq8canary" in log
    assert (
        json.loads(told(here, "keys", "renew", "s.db", "support/ada/c1", "--json"))["number"] == 3
    )
    assert "Pass app/user/id" in told(here, "keys", "renew", "s.db", code=2)
    assert "nothing is wrong" in told(here, "verify", "s.db")


def test_a_receipt_finds_that_store_and_ring_were_rolled_back(here: Path) -> None:
    """Both are copied and put back together; only the receipt, which is elsewhere, knows."""
    before = {file.name: file.read_bytes() for file in here.glob("s.db*")}
    told(here, "send", "s.db", "support/ada/c1", "more")
    receipt = told(here, "receipt", "s.db", "support/ada/c1", "--prove", "2")
    assert json.loads(receipt)["receipt"]["version"] == 3
    (here / "receipt.json").write_text(receipt)
    assert "nothing is wrong" in told(here, "verify", "s.db", "--against", "receipt.json")
    for file in here.glob("s.db*"):
        file.unlink()
    for name, raw in before.items():
        (here / name).write_bytes(raw)
    assert "nothing is wrong" in told(here, "verify", "s.db")
    assert "rolled back" in told(here, "verify", "s.db", "--against", "receipt.json", code=1)


def test_signing_keys_are_made(tmp_path: Path) -> None:
    """A file of mode 0600 that gets one more key each time; nothing else is overwritten."""
    pytest.importorskip("joserfc")
    from limpet.security.signing_keys import SigningKeys

    made = [json.loads(told(tmp_path, "tokens", "new-key", "t.pem", "--json")) for _ in range(2)]
    assert (tmp_path / "t.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "t.pem").read_text().count("BEGIN PRIVATE KEY") == 2
    assert made[0]["kid"] != made[1]["kid"]
    signing = SigningKeys(f"file://{tmp_path}/t.pem")
    assert made[1]["kid"] == signing.kid
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "notes.txt").chmod(0o600)
    assert "no private key" in told(tmp_path, "tokens", "new-key", "notes.txt", code=2)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    told(tmp_path, "tokens", "new-key", "missing/t.pem", code=2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.txt", "t.pem"]
