"""Answers of the commands that move and forget sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from limpet.cli.show import Screen
from limpet.model import Key, to_time
from limpet.session.move.mirror import Mirrored
from limpet.session.move.transfer import Copied, Refused
from limpet.session.wire import key_form
from limpet.store.answers import Erasure, Erasures, plural, size


def show_copied(screen: Screen, copied: Copied, seconds: float) -> None:
    told = {
        "ok": copied.ok,
        "sessions": copied.sessions,
        "events": copied.events,
        "names": copied.names,
        "left_out": list(copied.left_out),
        "cut": [key_form(key) for key in copied.cut],
        "refused": [_refused(each) for each in copied.refused],
        "refusals": copied.refusals,
        "seconds": seconds,
    }
    with screen.answer(told) as say:
        for each in copied.refused:
            say(f"not copied: {each.what}: {each.reason}", "problem")
        if copied.refusals > len(copied.refused):
            say(f"and {copied.refusals - len(copied.refused):,} more were not copied.", "problem")
        for key in copied.cut:
            say(
                f"cut: {key} came without its parent; what is before the fork reads as removed.",
                "warning",
            )
        if copied.left_out:
            names = ", ".join(copied.left_out)
            say(f"left out: {names}. Copy the app to bring them along (--app).", "warning")
        how = "ok" if copied.ok else "not ok"
        say(f"{how}: {copied.sent} in {seconds:.1f} s.", "ok" if copied.ok else "problem")


def show_exported(screen: Screen, key: Key, file: Path) -> None:
    held = file.stat().st_size
    told = {"ok": True, "session": key_form(key), "file": str(file), "bytes": held}
    with screen.answer(told) as say:
        say(f"ok: {key} exported to {file} ({size(held)}). Its bodies are in plain text.", "ok")


def show_mirrored(screen: Screen, written: Mirrored, place: Path) -> None:
    told = {"ok": True, "directory": str(place), **msgspec.to_builtins(written)}
    with screen.answer(told) as say:
        say(f"ok: {written} to {place}. Bodies are in plain text.", "ok")


def show_imported(screen: Screen, key: Key, version: int) -> None:
    told = {"ok": True, "session": key_form(key), "version": version}
    with screen.answer(told) as say:
        say(f"ok: {key} imported, at version {version:,}.", "ok")


def show_erased(screen: Screen, key: Key, erasure: Erasure | None) -> None:
    told = {"ok": True, "session": key_form(key), "erased": None}
    told |= {} if erasure is None else {"erased": _certificate(erasure)}
    with screen.answer(told) as say:
        if erasure is None:
            say(f"ok: there is no session {key}; nothing was erased.", "warning")
            return
        whose = "its" if erasure.forks_kept == 1 else "their"
        kept = f"; {plural(erasure.forks_kept, 'fork')} kept {whose} state"
        say(f"ok: {key} erased{kept if erasure.forks_kept else ''}.", "ok")


def show_forgotten(screen: Screen, app: str, user: str, done: Erasures) -> None:
    told = {
        "ok": True,
        "app": app,
        "user": user,
        "certificate": _certificate(done.user),
        "sessions": len(done.sessions),
        "names": done.names,
        "forks": [key_form(key) for key in done.forks],
    }
    with screen.answer(told) as say:
        for key in done.forks:
            say(f"kept: {key}, a fork of another user, keeps the state it began on.", "warning")
        gone = f"{plural(len(done.sessions), 'session')}, {plural(done.names, 'user: name')}"
        say(f"ok: the user {user} of {app} erased: {gone}.", "ok")


def _certificate(erasure: Erasure) -> dict[str, Any]:
    return {
        "key_hash": erasure.key_hash.hex(),
        "version": erasure.version,
        "link": erasure.link.hex(),
        "erased_at": to_time(erasure.erased_us).isoformat(timespec="seconds"),
        "forks_kept": erasure.forks_kept,
    }


def _refused(each: Refused) -> dict[str, Any]:
    key = None if each.key is None else key_form(each.key)
    return {"what": each.what, "code": each.code, "reason": each.reason, "session": key}
