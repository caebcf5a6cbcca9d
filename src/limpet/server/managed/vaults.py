"""Vaults with credentials: documents of the user. A secret that was given is never returned.

It is stored as every body is: sealed, if the store was opened with keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.routing import BaseRoute

from limpet.errors import DocumentNotFound, InvalidInput
from limpet.server.forms import PageForm
from limpet.server.managed import shelf
from limpet.server.managed.forms import CredentialForm, DeletedForm, VaultForm
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.documents import Document

VAULTS: Final = "wire_vaults"
CREDENTIALS: Final = "wire_credentials"
# The fields of a credential that are shown. Nothing else is, since any of it may be a secret.
_SHOWN: Final = frozenset(
    (
        *("type", "mcp_server_url", "expires_at", "secret_name", "networking", "allowed_hosts"),
        *("injection_location", "body", "header"),
        *("refresh", "client_id", "token_endpoint", "token_endpoint_auth", "resource", "scope"),
    )
)
_INJECTED: Final = {"body": True, "header": True}  # where the value of a variable may be put
# The kinds of credentials, with the texts that each has to have.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "static_bearer": ("token", "mcp_server_url"),
    "mcp_oauth": ("access_token", "mcp_server_url"),
    "environment_variable": ("secret_name", "secret_value"),
}
_NETWORKING: Final = ("unrestricted", "limited")


class VaultCreate(msgspec.Struct):
    """The body of vaults.create."""

    display_name: str
    metadata: dict[str, str] = {}


class VaultUpdate(msgspec.Struct):
    """The body of vaults.update."""

    display_name: str | UnsetType | None = UNSET
    metadata: dict[str, str | None] | UnsetType | None = UNSET


class CredentialCreate(msgspec.Struct):
    """The body of credentials.create."""

    auth: dict[str, Any]
    display_name: str | None = None
    metadata: dict[str, str] = {}


class CredentialUpdate(msgspec.Struct):
    """The body of credentials.update."""

    auth: dict[str, Any] | UnsetType = UNSET
    display_name: str | UnsetType | None = UNSET
    metadata: dict[str, str | None] | UnsetType | None = UNSET


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/v1/vaults{path}", method, act)

    return [
        at("POST", "", create),
        at("GET", "", listed),
        at("GET", "/{vault_id}", retrieve),
        at("POST", "/{vault_id}", update),
        at("DELETE", "/{vault_id}", delete),
        at("POST", "/{vault_id}/archive", archive),
        at("POST", "/{vault_id}/credentials", create_credential),
        at("GET", "/{vault_id}/credentials", list_credentials),
        at("GET", "/{vault_id}/credentials/{id}", retrieve_credential),
        at("POST", "/{vault_id}/credentials/{id}", update_credential),
        at("DELETE", "/{vault_id}/credentials/{id}", delete_credential),
        at("POST", "/{vault_id}/credentials/{id}/archive", archive_credential),
    ]


@describe(response=VaultForm)
async def create(call: WireCall) -> Answer:
    value = msgspec.to_builtins(await call.body(VaultCreate))
    shelf.check_name("display_name", value["display_name"])
    shelf.check_metadata(value["metadata"])
    return _vault(await shelf.create(call, call.of_user(VAULTS), "vlt_", value))


@describe(response=PageForm[VaultForm])
async def listed(call: WireCall) -> Answer:
    return await shelf.listed(call, call.of_user(VAULTS), _vault)


@describe(response=VaultForm)
async def retrieve(call: WireCall) -> Answer:
    return _vault(await shelf.find(call.of_user(VAULTS), call.path("vault_id")))


@describe(response=VaultForm)
async def update(call: WireCall) -> Answer:
    given = _given(msgspec.to_builtins(await call.body(VaultUpdate)))
    if "display_name" in given:
        shelf.check_name("display_name", given["display_name"])
    changed = _patch(given)
    return _vault(await shelf.change(call.of_user(VAULTS), call.path("vault_id"), changed))


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    """Its credentials go first, so that none is left without its vault."""
    vault, credentials = call.path("vault_id"), call.of_user(CREDENTIALS)
    await shelf.find(call.of_user(VAULTS), vault)
    async for document in credentials.each(f"{vault}/"):
        await credentials.purge(document.name)
    return await shelf.remove(call.of_user(VAULTS), vault, "vault_deleted")


@describe(response=VaultForm)
async def archive(call: WireCall) -> Answer:
    return _vault(await shelf.archive(call, call.of_user(VAULTS), call.path("vault_id")))


def _vault(document: Document) -> Json:
    return shelf.shown(document, "vault")


async def open_vault(call: WireCall, id: str) -> Document:
    """A vault of this user, to be used. Raises DocumentNotFound, InvalidInput."""
    vault = await shelf.find(call.of_user(VAULTS), id)
    if vault.value.get("archived_at") is not None:
        raise InvalidInput(f"the vault {vault.name} is archived. Use another one.")
    return vault


# --- credentials ----------------------------------------------------------------------------------


@describe(response=CredentialForm)
async def create_credential(call: WireCall) -> Answer:
    vault = await open_vault(call, call.path("vault_id"))
    value = msgspec.to_builtins(await call.body(CredentialCreate))
    _check_auth(value["auth"])
    shelf.check_metadata(value["metadata"])
    prefix = f"{vault.name}/vcrd_"
    return _credential(await shelf.create(call, call.of_user(CREDENTIALS), prefix, value))


def _check_auth(auth: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless it is one of the kinds, with all that it has to have."""
    kind = str(auth.get("type"))
    if kind not in _KINDS:
        raise InvalidInput(f"auth has one of the types {', '.join(_KINDS)}.")
    for name in _KINDS[kind]:
        if not isinstance(auth.get(name), str):
            raise InvalidInput(f"auth of the type {kind} has a {name}, a text.")
    if kind == "environment_variable":
        networking = auth.get("networking")
        if not isinstance(networking, Mapping) or networking.get("type") not in _NETWORKING:
            known = " or ".join(_NETWORKING)
            raise InvalidInput(f"networking of a credential is an object of the type {known}.")
    if not isinstance(auth.get("injection_location"), Mapping | None):
        raise InvalidInput("injection_location of a credential is an object.")


@describe(response=PageForm[CredentialForm])
async def list_credentials(call: WireCall) -> Answer:
    vault = await shelf.find(call.of_user(VAULTS), call.path("vault_id"))
    documents = call.of_user(CREDENTIALS)
    return await shelf.listed(call, documents, _credential, prefix=f"{vault.name}/")


@describe(response=CredentialForm)
async def retrieve_credential(call: WireCall) -> Answer:
    return _credential(await shelf.find(call.of_user(CREDENTIALS), _name(call)))


@describe(response=CredentialForm)
async def update_credential(call: WireCall) -> Answer:
    given = _given(msgspec.to_builtins(await call.body(CredentialUpdate)))
    auth = given.pop("auth", {})
    patch = _patch(given)

    def changed(value: Json) -> Json:
        if auth.get("type", value["auth"]["type"]) != value["auth"]["type"]:
            raise InvalidInput("the type of a credential cannot be changed. Create another one.")
        merged = _merged(value["auth"], auth)
        _check_auth(merged)
        return {**patch(value), "auth": merged}

    return _credential(await shelf.change(call.of_user(CREDENTIALS), _name(call), changed))


@describe(response=DeletedForm)
async def delete_credential(call: WireCall) -> Answer:
    await shelf.remove(call.of_user(CREDENTIALS), _name(call), "vault_credential_deleted")
    return {"id": call.path("id"), "type": "vault_credential_deleted"}


@describe(response=CredentialForm)
async def archive_credential(call: WireCall) -> Answer:
    return _credential(await shelf.archive(call, call.of_user(CREDENTIALS), _name(call)))


def _name(call: WireCall) -> str:
    vault, id = call.path("vault_id"), call.path("id")
    if "/" in vault or "/" in id:
        raise DocumentNotFound(CREDENTIALS, id[:100])
    return f"{vault}/{id}"


def _credential(document: Document) -> Json:
    form = shelf.shown(document, "vault_credential")
    vault, _, id = document.name.partition("/")
    form |= {"id": id, "vault_id": vault, "auth": _shown(form["auth"])}
    if form["auth"].get("type") == "environment_variable":
        given = form["auth"].get("injection_location") or {}
        form["auth"]["injection_location"] = {**_INJECTED, **given}
    return form


def _shown(value: Any) -> Any:
    """A credential without its secrets."""
    if isinstance(value, Mapping):
        return {name: _shown(each) for name, each in value.items() if name in _SHOWN}
    return [_shown(each) for each in value] if isinstance(value, list | tuple) else value


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """An object with what is new in it; the rest stays, unless it becomes one of another type."""
    if new.get("type", old.get("type")) != old.get("type"):
        return dict(new)
    merged = dict(old)
    for name, value in new.items():
        if isinstance(value, Mapping) and isinstance(old.get(name), Mapping):
            merged[name] = _merged(old[name], value)
        elif value is not None:
            merged[name] = value
    return merged


def _given(given: Json) -> Json:
    """Null leaves a name as it is."""
    return {name: value for name, value in given.items() if value is not None}


def _patch(given: Json) -> Any:
    def changed(value: Json) -> Json:
        metadata = shelf.patched(value["metadata"], given.get("metadata"))
        return {**value, **given, "metadata": metadata}

    return changed
