"""Checks an export of an audit offline: the standard library, and `cryptography` for a signature.

Copy this file anywhere and run it; it imports nothing of Limpet.

    python audit_check.py audit.jsonl [--link APP=LINK]

The first line is the manifest: for each log its app, uid, version, link and, of a store with keys,
a receipt. Every other line is one event of a log, in order:

    link = SHA-256(previous ‖ seq ‖ at in µs ‖ SHA-256(header) ‖ SHA-256(salt ‖ body)),
           the first one follows SHA-256("limpet" 0 uid); numbers have 8 bytes, big-endian
    name = a text whose HMAC-SHA256 under its key is the hash that stands in the body

`record` is what the body says, with the names in place of the hashes; it is compared, too. A line
that was redacted has the digest of its body instead. Whoever can rewrite the file can build another
chain: compare the links with what was noted when it was exported, or check the receipts.
"""

from __future__ import annotations

import argparse
import hmac
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812  # a class
from typing import Any

FORMAT = "limpet audit 1"
RECORDS = ("audit.allowed", "audit.denied")
REPEATED = "audit.repeated"
_numbers = Struct(">Qq").pack
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  # runs on older Pythons too
_HASH_SHOWN = 12
_MANIFEST_KEYS = {"limpet", "at", "logs", "receipts"}
_LINE_KEYS = {"seq", "at_us", "header", "link", "salt", "body", "names", "record"}
_REDACTED_KEYS = {"seq", "at_us", "link", "header", "digest", "redacted"}


class AuditNotValid(ValueError):
    """An export does not hold, and why."""


def shown_name(hash: str, names: Mapping[str, str]) -> str:
    """A name by its hash; of one that was erased, the beginning of the hash."""
    return names.get(hash, f"~{hash[:_HASH_SHOWN]}")


def hashes_in(data: Mapping[str, Any]) -> list[str]:
    """The hashes of names that a record holds."""
    hashes = [part[0] for part in data.get("principal", ()) if not isinstance(part, str)]
    return list(dict.fromkeys(hashes + [each[0] for each in data.get("path", ()) if each[1]]))


def record_of(
    app: str, type: str, at_us: int, data: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the audit record in one event, with these names."""
    at = (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds")
    if type == REPEATED:
        return {"at": at, "repeats": {str(seq): many for seq, many in data["of"]}}
    if type not in RECORDS:
        return {"at": at}
    who = [p if isinstance(p, str) else shown_name(p[0], names) for p in data["principal"]]
    path = [shown_name(text, names) if hashed else text for text, hashed in data["path"]]
    resource = "/".join([app, *path])
    if "name" in data:
        text, hashed = data["name"]
        resource += f"#{shown_name(text, names) if hashed else text}"
    record = {
        "at": at,
        "principal": "".join(who),
        "action": data["action"],
        "resource": resource,
        "allowed": type == RECORDS[0],
        "code": data.get("code"),
        "policy": data.get("policy"),
        "address": data.get("address"),
        "repeats": data.get("repeats", 0),
    }
    return {**record, "via": data["via"]} if "via" in data else record


def check_lines(lines: Iterable[bytes], links: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Check an export; return its manifest. `links` are those that were noted, by app.

    Raises AuditNotValid: a line was changed, removed, swapped or added, or the end is missing.
    """
    numbered = _parsed(lines)
    try:
        _, manifest = next(numbered)
    except StopIteration:
        raise AuditNotValid("the file is empty") from None
    if not isinstance(manifest, dict) or manifest.get("limpet") != FORMAT:
        raise AuditNotValid("line 1 is not the manifest of an audit")
    if manifest.keys() != _MANIFEST_KEYS:
        raise AuditNotValid("the manifest has other members than that of an audit")
    for log in manifest["logs"]:
        noted = (links or {}).get(log["app"])
        if noted is not None and noted != log["link"]:
            raise AuditNotValid(
                f"the log of {log['app']} has another link than the one that was noted"
            )
        _check_log(log, numbered)
    for app in links or {}:
        if app not in [log["app"] for log in manifest["logs"]]:
            raise AuditNotValid(f"the log of {app} is missing")
    for number, _ in numbered:
        raise AuditNotValid(f"line {number} belongs to no log of the manifest")
    return manifest


def _parsed(lines: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            yield number, json.loads(line, object_pairs_hook=_once)
        except ValueError as error:
            raise AuditNotValid(f"line {number} is not JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which no name stands twice: another reader might take the other one."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice in it")
    return members


def _check_log(log: Mapping[str, Any], lines: Iterator[tuple[int, Any]]) -> None:
    link = sha256(b"limpet\x00" + log["uid"].encode()).digest()
    for seq in range(1, log["version"] + 1):
        try:
            number, line = next(lines)
        except StopIteration:
            missing = f"the log of {log['app']} ends before event {seq}: the end is missing"
            raise AuditNotValid(missing) from None
        try:
            body = _body_digest(log["app"], line)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise AuditNotValid(f"line {number}: {error}") from error
        if line["seq"] != seq:
            raise AuditNotValid(f"line {number} has event {line['seq']}, and event {seq} is due")
        header = sha256(line["header"].encode()).digest()
        try:
            link = sha256(link + _numbers(seq, line["at_us"]) + header + body).digest()
        except StructError as error:
            raise AuditNotValid(f"line {number} has a time that is not a whole number") from error
        if line["link"] != link.hex():
            raise AuditNotValid(f"line {number} does not follow from the lines before it")
    if link.hex() != log["link"]:
        raise AuditNotValid(f"the log of {log['app']} does not lead to the link of the manifest")


def _body_digest(app: str, line: dict[str, Any]) -> bytes:
    """The digest of the body of a line, once what stands beside it was compared."""
    if line.get("redacted"):
        if line.keys() != _REDACTED_KEYS:
            raise AuditNotValid("it has other members than a redacted line")
        return bytes.fromhex(line["digest"])
    if line.keys() != _LINE_KEYS:
        raise AuditNotValid("it has other members than a line of an audit")
    data = json.loads(line["body"])["data"]
    for hash, opening in line["names"].items():
        key, name = opening["key"], opening["name"]
        if hmac.new(bytes.fromhex(key), name.encode(), "sha256").hexdigest() != hash:
            raise AuditNotValid(f"the name {name!r} does not fit its hash")
    type = json.loads(line["header"])[1]
    names = {hash: opening["name"] for hash, opening in line["names"].items()}
    if record_of(app, type, line["at_us"], data, names) != line["record"]:
        raise AuditNotValid("its record is not what its body says")
    return sha256(bytes.fromhex(line["salt"]) + line["body"].encode()).digest()


# --- the command ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Check a file, print one line, and return 0 or 1."""
    parser = argparse.ArgumentParser(description="Check an export of an audit, offline.")
    parser.add_argument("file", type=Path, help="what lp.export_audit wrote")
    parser.add_argument("--link", action="append", default=[], metavar="APP=LINK")
    given = parser.parse_args(arguments)
    try:
        links = dict([each.rsplit("=", 1) for each in given.link])
        with given.file.open("rb") as lines:
            manifest = check_lines(lines, links)
    except (AuditNotValid, OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"not valid: {error}\n")
        return 1
    many = sum([log["version"] for log in manifest["logs"]])
    sys.stdout.write(f"valid: {many} events of {len(manifest['logs'])} logs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
