"""Masters that never come to this process: a Vault server, and a hardware module."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from limpet.errors import ExtraMissing, KeysInvalid, SealUnavailable
from tests.support.vault import TOKEN, FakeVault, fake_vault

MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so")


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVault]:
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    with fake_vault() as found:
        yield found


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/support.db?sync=normal"


async def test_a_vault_wraps_and_unwraps(vault: FakeVault, database: str, tmp_path: Path) -> None:
    """The ring has ciphertexts of Vault, and no master is ever sent."""
    async with limpet.open(database, keys=vault.url) as lp:
        await lp.create("support", "ada", "c1", state={"text": "secret"})
    async with limpet.open(database, keys=vault.url) as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "secret"}
        status = await lp.keys.status()
        assert (status.newest, status.pending) == ("v1", 0)
        assert TOKEN not in f"{status} {lp!r}"
    assert b"vault:v1:" in (tmp_path / "support.db-keys").read_bytes()
    assert {asked.split("/")[3] for asked in vault.asked} == {"encrypt", "decrypt", "keys"}


async def test_a_rotated_vault_key_is_followed(vault: FakeVault, database: str) -> None:
    """After the ring was rotated, old versions of the key can be disallowed."""
    async with limpet.open(database, keys=vault.url) as lp:
        await lp.create("support", "ada", "c1", state={"text": "secret"})
    vault.rotate()
    async with limpet.open(database, keys=vault.url) as lp:
        assert await lp.keys.rotate() == 2
    vault.least = 2
    async with limpet.open(database, keys=vault.url) as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "secret"}


async def test_a_vault_that_is_down_changes_nothing(vault: FakeVault, database: str) -> None:
    """The call fails and can be made again; what is known already goes on."""
    async with limpet.open(database, keys=vault.url) as lp:
        s = await lp.create("support", "ada", "c1")
        vault.down = True
        await s.append("note.made", {}, actor="user:ada")
        with pytest.raises(SealUnavailable, match="answers 503"):
            await lp.create("support", "ada", "c2")
        vault.down = False
        await lp.create("support", "ada", "c2")
    vault.down = True
    with pytest.raises(SealUnavailable):
        await limpet.open(database, keys=vault.url)


async def test_another_key_than_was_committed_to_is_refused(
    vault: FakeVault, database: str
) -> None:
    """Whatever a provider answers, only the key that was wrapped is used."""
    async with limpet.open(database, keys=vault.url) as lp:
        await lp.create("support", "ada", "c1")
    vault.lies = True
    with pytest.raises(SealUnavailable, match="committed to"):
        await limpet.open(database, keys=vault.url)


async def test_a_vault_needs_a_token(
    vault: FakeVault, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong one is refused; the error does not repeat it."""
    monkeypatch.setenv("VAULT_TOKEN", "s.wrong")
    with pytest.raises(SealUnavailable, match="answers 403") as caught:
        await limpet.open(database, keys=vault.url)
    assert "s.wrong" not in str(caught.value)
    monkeypatch.delenv("VAULT_TOKEN")
    with pytest.raises(KeysInvalid, match="VAULT_TOKEN"):
        await limpet.open(database, keys=vault.url)


@pytest.mark.parametrize("keys", ["vault://", "vault://host", "pkcs11:", "pkcs11:token", "ftp://x"])
async def test_an_address_that_is_none_is_refused(keys: str) -> None:
    """The error shows the form."""
    with pytest.raises(KeysInvalid, match="write"):
        await limpet.open("memory://", keys=keys)


async def test_a_hardware_module_needs_its_package() -> None:
    """The error names the extra to install."""
    try:
        import pkcs11  # noqa: F401
    except ImportError:
        with pytest.raises(ExtraMissing, match=r"limpet\[pkcs11\]"):
            await limpet.open("memory://", keys="pkcs11:token/key?module=/none.so")
    else:
        with pytest.raises(KeysInvalid):
            await limpet.open("memory://", keys="pkcs11:token/key?module=/none.so")


async def test_a_hardware_module_wraps_and_unwraps(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against softhsm2, where it and python-pkcs11 are installed."""
    pkcs11 = pytest.importorskip("pkcs11")
    module = next((path for path in MODULES if Path(path).exists()), None)
    if module is None or shutil.which("softhsm2-util") is None:
        pytest.skip("softhsm2 is not installed")
    (tmp_path / "tokens").mkdir()
    config = tmp_path / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(config))
    monkeypatch.setenv("LIMPET_PKCS11_PIN", "1234")
    made = ["softhsm2-util", "--init-token", "--free", "--label", "limpet"]
    pins = ("--pin", "1234", "--so-pin", "1234")
    subprocess.run([*made, *pins], check=True, env=os.environ)  # noqa: ASYNC221  # nothing else runs
    token = pkcs11.lib(module).get_token(token_label="limpet")
    with token.open(rw=True, user_pin="1234") as session:
        kind = pkcs11.KeyType.GENERIC_SECRET
        session.generate_key(kind, 256, label="master", store=True)
    keys = f"pkcs11:limpet/master?module={module}"
    async with limpet.open(database, keys=keys) as lp:
        await lp.create("support", "ada", "c1", state={"text": "secret"})
    async with limpet.open(database, keys=keys) as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "secret"}
