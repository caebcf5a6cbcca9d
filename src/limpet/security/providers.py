"""From `keys=` to the masters that it names."""

from __future__ import annotations

from limpet.errors import KeysInvalid
from limpet.security.masters import Masters, local_masters


def open_masters(keys: str) -> Masters:
    """The masters that `keys=` names. Raises KeysInvalid, ExtraMissing."""
    if not isinstance(keys, str):
        raise KeysInvalid("of this type", "pass a text such as env:NAME or file:///path")
    scheme = keys.partition(":")[0]
    if scheme == "vault":
        from limpet.security.vault import VaultMasters

        return VaultMasters(keys)
    if scheme == "pkcs11":
        from limpet.security.pkcs11 import HardwareMasters

        return HardwareMasters(keys)
    found = local_masters(keys)
    if found is None:
        known = "env:NAME, file:///path, vault://host/mount/key, pkcs11:token/key or memory:"
        raise KeysInvalid(f"{scheme}:…", f"write {known}")
    return found
