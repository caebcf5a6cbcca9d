"""The commands about keys and what they prove: keys, tokens, receipt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from limpet.cli.command import CARE, Display, SessionToRead, StoreArgument, command
from limpet.cli.options import file_path, session_key, store_url
from limpet.cli.render import CommandResult, JsonBlock, TextLine
from limpet.errors import InvalidInput
from limpet.session.json_forms import key_form
from limpet.store.protocol import plural


@command(CARE)
async def keys(
    action: Annotated[
        Literal["new", "status", "public", "rotate", "renew"],
        typer.Argument(
            metavar="new|status|public|rotate|renew", help="What to do.", show_default=False
        ),
    ],
    screen: Display,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="new: the key file, which gets one more key, or pkcs11:… Else the store.",
            show_default=False,
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="renew: app/user/id.", show_default=False),
    ] = None,
) -> CommandResult:
    """Create a master key, or manage the key ring of a store.

    new FILE adds a master key at the end of a file of mode 0600, created if missing. Without FILE
    it prints one; with pkcs11:TOKEN/KEY?module=PATH it creates one in a hardware module.

    status STORE counts the wrapped keys by master.

    public STORE prints the key that checks receipts, for which others seal what they move here.

    rotate STORE wraps every data key with the newest master. Safe to interrupt and run again; keep
    the old master in the file until it ends.

    renew STORE SESSION gives a session another data key.
    """
    if action == "new" and target is not None and target.startswith("pkcs11:"):
        from limpet.security.pkcs11 import create_master

        label = create_master(target)
        line = f"ok: the token has the key {label}, which does not leave it."
        return CommandResult({"key": label}, [TextLine(line, "ok")])
    if action == "new":
        return _new_master(None if target is None else file_path(target))
    if target is None:
        raise InvalidInput(f"limpet keys {action} takes a store. Pass STORE.")
    store = StoreArgument(store_url(target))
    if action == "status":
        async with store.opened(writes=False) as lp:
            status = await lp.keys.status()
        form = {**msgspec.to_builtins(status), "pending": status.pending}
        return CommandResult(form, [TextLine(str(status), "ok")])
    if action == "public":
        async with store.opened(writes=False) as lp:
            public_key = lp.keys.public_key
        return CommandResult(
            {"public_key": public_key}, [TextLine(line) for line in public_key.splitlines()]
        )
    if action == "renew":
        if session is None:
            raise InvalidInput("limpet keys renew takes a store and a session. Pass app/user/id.")
        async with store.opened() as lp:
            number = await lp.keys.renew(key := session_key(session))
        line = f"ok: {key} is sealed with its data key {number} from now on."
        return CommandResult({"session": key_form(key), "number": number}, [TextLine(line, "ok")])
    async with store.opened() as lp:
        with screen.progress("wrapping keys") as progress:
            done = await lp.keys.rotate(progress)
        status = await lp.keys.status()
    line = f"ok: {plural(done, 'key')} wrapped with the master {status.newest}."
    return CommandResult({"rotated": done, "newest": status.newest}, [TextLine(line, "ok")])


@command(CARE)
async def tokens(
    action: Annotated[
        Literal["new-key"],
        typer.Argument(metavar="new-key", help="What to do.", show_default=False),
    ],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="PEM file of signing keys.", show_default=False),
    ],
) -> CommandResult:
    """Create a key that signs session tokens.

    new-key FILE adds an Ed25519 key at the end of a PEM file of mode 0600, and makes the file if
    need be. The last key signs, all of them verify: processes that use the file notice it within a
    second. Remove an old key once its tokens have expired, after 15 minutes.
    """
    from limpet.security.signing_keys import add_signing_key

    path = file_path(file)
    kid = add_signing_key(path)
    line = (
        f"ok: the key {kid} was added at the end of {path}. Use it with "
        f"limpet.Tokens(lp, signing='file://{path.absolute()}')."
    )
    return CommandResult({"action": action, "file": str(path), "kid": kid}, [TextLine(line, "ok")])


@command(CARE)
async def receipt(
    session: SessionToRead,
    *,
    seq: Annotated[
        int | None,
        typer.Option("--prove", metavar="SEQ", help="Add a proof of the event with this seq."),
    ] = None,
) -> CommandResult:
    """Sign a session's version, and print the receipt as JSON.

    It holds the version, the link and the root of a Merkle tree over the events. With --prove the
    JSON also has a proof of one event, which shows no other. Needs --keys.
    """
    signed = await session.receipt()
    form = msgspec.to_builtins(signed)
    if seq is not None:
        form = {"receipt": form, "proof": msgspec.to_builtins(await session.prove(seq))}
    return CommandResult(form, [JsonBlock(form)])


def _new_master(path: Path | None) -> CommandResult:
    from limpet.security.masters import new_master

    made = new_master()
    if path is None:
        return CommandResult({"key": made}, [TextLine(made)])
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(f"{made}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}. Choose a file.") from error
    line = (
        f"ok: a master was added at the end of {path}. Use it with --keys file://{path.absolute()}."
    )
    return CommandResult({"file": str(path)}, [TextLine(line, "ok")])
