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
        await lp.create("support", "ada", "c1", state={"text": "canary-7f3a"})
    async with limpet.open(database, keys=vault.url) as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "canary-7f3a"}
        status = await lp.keys.status()
        assert (status.newest, status.pending) == ("v1", 0)
        assert TOKEN not in f"{status} {lp!r}"
    assert b"vault:v1:" in (tmp_path / "support.db-keys").read_bytes()
    assert {asked.split("/")[3] for asked in vault.asked} == {"encrypt", "decrypt", "keys"}


async def test_a_rotated_vault_key_is_followed(vault: FakeVault, database: str) -> None:
    """After the ring was rotated, old versions of the key can be disallowed."""
    async with limpet.open(database, keys=vault.url) as lp:
        await lp.create("support", "ada", "c1", state={"text": "canary-7f3a"})
    vault.rotate()
    async with limpet.open(database, keys=vault.url) as lp:
        assert await lp.keys.rotate() == 2
    vault.least = 2
    async with limpet.open(database, keys=vault.url) as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "canary-7f3a"}


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


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The library of softhsm2, with a token "limpet" of its own."""
    pkcs11 = pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed")
    found = next((path for path in MODULES if Path(path).exists()), None)
    if found is None or shutil.which("softhsm2-util") is None:
        pytest.skip("softhsm2 is not installed: no hardware module to test with")
    (tmp_path / "tokens").mkdir()
    config = tmp_path / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(config))
    monkeypatch.setenv("LIMPET_PKCS11_PIN", "1234")
    made = ["softhsm2-util", "--init-token", "--free", "--label", "limpet"]
    subprocess.run([*made, "--pin", "1234", "--so-pin", "1234"], check=True, env=os.environ)
    yield found
    from limpet.security.pkcs11 import _TOKENS

    for token in _TOKENS.values():
        token._leave()
    _TOKENS.clear()
    pkcs11.unload(found)  # it reads its configuration once


async def test_a_hardware_module_wraps_and_unwraps(
    module: str, database: str, tmp_path: Path
) -> None:
    """Its master stays in the module; two stores use it at once; nothing reads without it."""
    import pkcs11

    from limpet.security.pkcs11 import _TOKENS, create_master

    keys = f"pkcs11:limpet/master?module={module}"
    assert create_master(keys) == "master"
    with pytest.raises(KeysInvalid, match="already"):
        create_master(keys)
    async with limpet.open(database, keys=keys) as lp:
        await lp.create("support", "ada", "c1", state={"text": "canary-7f3a"})
        async with limpet.open(f"sqlite:///{tmp_path}/other.db", keys=keys) as other:
            await other.create("support", "ada", "c2")
        token = _TOKENS[module, "limpet"]
        key = token._key("master")
        with pytest.raises(pkcs11.exceptions.AttributeSensitive):
            key[pkcs11.Attribute.VALUE]
        token._session.close()  # as a module that was unplugged: the next use enters again
        await lp.create("support", "ada", "c3")
    async with limpet.open(database, keys=keys) as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "canary-7f3a"}
        assert (await lp.keys.status()).provider == "pkcs11:limpet"
    assert b"canary-7f3a" not in (tmp_path / "support.db").read_bytes()


async def test_keys_of_a_hardware_module_are_rotated(module: str, database: str) -> None:
    """A new key of the token wraps, then the old one can go; without it before, nothing opens."""
    from limpet.security.pkcs11 import create_master

    for label in ("old", "new", "another"):
        create_master(f"pkcs11:limpet/{label}?module={module}")
    async with limpet.open(database, keys=f"pkcs11:limpet/old?module={module}") as lp:
        await lp.create("support", "ada", "c1", state={"text": "canary-7f3a"})
    with pytest.raises(SealUnavailable, match="old"):
        await limpet.open(database, keys=f"pkcs11:limpet/new?module={module}")
    async with limpet.open(database, keys=f"pkcs11:limpet/old,new?module={module}") as lp:
        status = await lp.keys.status()
        assert (status.newest, await lp.keys.rotate()) == ("new", status.pending)
    async with limpet.open(database, keys=f"pkcs11:limpet/new?module={module}") as lp:
        assert (await lp.get("support", "ada", "c1")).values == {"text": "canary-7f3a"}
    with pytest.raises(SealUnavailable):
        await limpet.open(database, keys=f"pkcs11:limpet/another?module={module}")


async def test_what_is_wrong_with_a_hardware_module_is_said(
    module: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing token or key, a key that may not sign, a wrong PIN; and the PIN in no error."""
    import pkcs11

    with pytest.raises(KeysInvalid, match="NoSuchToken"):
        await limpet.open(database, keys=f"pkcs11:nobody/master?module={module}")
    with pytest.raises(KeysInvalid, match="NoSuchKey"):
        await limpet.open(database, keys=f"pkcs11:limpet/nothing?module={module}")
    from limpet.security.pkcs11 import _TOKENS

    _TOKENS[module, "limpet"]._leave()
    token = pkcs11.lib(module).get_token(token_label="limpet")
    with token.open(rw=True, user_pin="1234") as session:
        session.generate_key(pkcs11.KeyType.GENERIC_SECRET, 256, label="mute", store=True)
    with pytest.raises(KeysInvalid, match="may not sign"):
        await limpet.open(database, keys=f"pkcs11:limpet/mute?module={module}")
    _TOKENS[module, "limpet"]._leave()
    monkeypatch.setenv("LIMPET_PKCS11_PIN", "a wrong pin")
    with pytest.raises(KeysInvalid) as caught:
        await limpet.open(database, keys=f"pkcs11:limpet/mute?module={module}")
    assert "a wrong pin" not in str(caught.value)
