"""Keys to servers, as `limpet login` keeps them: one for each server, in a file of mode 0600."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from limpet.errors import InvalidInput

SCHEMES = ("http://", "https://")


def is_server(url: str) -> bool:
    """True if a URL names a server of ours."""
    return url.lower().startswith(SCHEMES)


def logins_file() -> Path:
    """Return the file in which keys are kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "limpet" / "logins.json"


def saved_token(url: str) -> str | None:
    """The key that was kept for the server of a URL."""
    return _read().get(_origin(url))


def save_token(url: str, token: str | None) -> Path:
    """Keep a key for the server of a URL; None forgets it. Whole or not at all, and mode 0600."""
    path, kept = logins_file(), _read()
    kept.pop(_origin(url), None)
    if token is not None:
        kept[_origin(url)] = token
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(FileNotFoundError):
        part.unlink()
    made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(made, "wb") as file:
        file.write(msgspec.json.encode(kept))
    part.replace(path)
    return path


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(
            f"{url!r} is not the URL of a server. Write http://host:8420."
        ) from error
    default = 443 if parts.scheme == "https" else 8420
    return f"{parts.scheme}://{parts.hostname}:{port or default}{parts.path.rstrip('/')}"


def _read() -> dict[str, str]:
    try:
        return msgspec.json.decode(logins_file().read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        reason = f"{logins_file()} cannot be read ({type(error).__name__})"
        raise InvalidInput(f"{reason}. Remove it, and log in again.") from error
