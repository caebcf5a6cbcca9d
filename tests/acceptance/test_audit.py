"""The audit: decisions about access are recorded, chained, bounded, and forgotten with a user."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import limpet
from limpet import Limpet, Principal
from limpet.errors import AccessDenied, AuditInvalid, InvalidCursor, ReservedApp, StoreError
from limpet.model import Commit, Key
from limpet.security import audit_check
from limpet.security.access import AllowedOperation, Resource
from limpet.security.audit import Audit, AuditQuery, log_of
from limpet.session.limpet import journal_of
from limpet.store.protocol import Committed
from tests.support.keys import key_file

ADA = Principal("user:ada", role="owner", app="support", user="ada")
BOB = Principal("user:bob", role="owner", app="support", user="bob")
ADMIN = Principal("admin:root", role="admin")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


@pytest.fixture
async def lp(url: str) -> AsyncIterator[Limpet]:
    async with limpet.open(url) as opened:
        yield opened


@pytest.fixture
async def one() -> AsyncIterator[Limpet]:
    """For what does not depend on the store."""
    async with limpet.open("memory://") as opened:
        yield opened


def audit_in(lp: Limpet) -> Audit:
    return journal_of(lp).audit


def session(id: str = "c1", user: str = "ada", app: str = "support") -> Resource:
    return Resource.of(Key(app, user, id))


async def denied(
    lp: Limpet, who: Principal, resource: Resource, action: str = "read", **more: str
) -> None:
    code = more.pop("code", "access_denied")
    await audit_in(lp).record(who, action, resource, allowed=False, code=code, **more)


async def test_a_record_says_who_asked_for_what_and_why_it_was_refused(lp: Limpet) -> None:
    """The newest first, with the names that were used."""
    await denied(lp, BOB, session(), address="10.0.0.7")
    await audit_in(lp).record(ADMIN, "erase", session(), allowed=True, policy="admin.erase")
    field = Resource("field", "support", "ada", "c1", "salary")
    await denied(lp, ADA, field, "write", code="field_access_denied", policy="fields")
    newest, middle, oldest = (await lp.audit()).items
    assert (newest.principal, newest.action) == ("user:ada", "write")
    assert (newest.resource, newest.code) == ("support/ada/c1#salary", "field_access_denied")
    assert (middle.principal, middle.allowed, middle.code) == ("admin:root", True, None)
    assert middle.policy == "admin.erase"
    assert (oldest.principal, oldest.address) == ("user:bob", "10.0.0.7")
    assert [each.seq for each in (newest, middle, oldest)] == [4, 3, 2]
    assert newest.at >= middle.at >= oldest.at
    report = await lp.maintenance.verify()
    assert report.ok, str(report)


async def test_the_audit_is_filtered_by_principal_session_outcome_time_and_app(lp: Limpet) -> None:
    """Each condition alone, and together."""
    await denied(lp, BOB, session("c1"))
    await denied(lp, BOB, session("c2"))
    await audit_in(lp).record(ADA, "share", session("c1"), allowed=True)
    await denied(lp, ADMIN, session("s1", "eve", "shop"))
    assert len((await lp.audit(principal="user:bob")).items) == 2
    (seen,) = (await lp.audit(principal="user:bob", session=Key("support", "ada", "c2"))).items
    assert seen.resource == "support/ada/c2"
    assert {r.principal for r in (await lp.audit(session=("support", "ada", "c1"))).items} == {
        "user:ada",
        "user:bob",
    }
    assert [r.action for r in (await lp.audit(denied=False)).items] == ["share"]
    assert len((await lp.audit(denied=True)).items) == 3
    (shop,) = (await lp.audit(app="shop")).items
    assert shop.resource == "shop/eve/s1"
    assert not (await lp.audit(lp.now() + timedelta(hours=1))).items
    assert len((await lp.audit(lp.now() - timedelta(hours=1))).items) == 4
    assert not (await lp.audit(app="elsewhere")).items


async def test_pages_over_several_apps_show_every_record_once_the_newest_first(lp: Limpet) -> None:
    """A cursor goes on where the page ended, in each log."""
    for number in range(12):
        app = ("support", "shop", "a")[number % 3]
        await denied(lp, ADMIN, session(f"c{number}", "ada", app))
    met, cursor = [], None
    while True:
        page = await lp.audit(limit=5, cursor=cursor)
        met += page.items
        cursor = page.cursor
        if cursor is None:
            break
    assert [r.resource.rpartition("/")[2] for r in met] == [f"c{n}" for n in range(11, -1, -1)]
    first = await lp.audit(limit=5)
    with pytest.raises(InvalidCursor):
        await lp.audit(limit=5, cursor=first.cursor, denied=True)


async def test_the_same_denial_within_a_second_is_counted_and_not_written_again(
    lp: Limpet,
) -> None:
    """Another action, resource, code or principal is another denial."""
    for _ in range(20):
        await denied(lp, BOB, session())
    await denied(lp, BOB, session(), "write")
    await denied(lp, BOB, session("c2"))
    await denied(lp, BOB, session(), code="policy_denied")
    await denied(lp, ADA, session())
    records = (await lp.audit()).items
    assert sorted(r.repeats for r in records) == [0, 0, 0, 0, 19]
    assert records[-1].repeats == 19
    await denied(lp, BOB, session())
    assert (await lp.audit()).items[-1].repeats in (19, 20)  # a second may have passed
    events = (await journal_of(lp).store.load(log_of("support"), tail=0)).head.version
    assert events <= 9


async def test_denials_that_race_are_one_record_and_none_is_answered_before_it(
    one: Limpet,
) -> None:
    """Those who come while the first is written wait for it."""
    await asyncio.gather(*[denied(one, BOB, session()) for _ in range(50)])
    (record,) = (await one.audit()).items
    assert record.repeats == 49


@pytest.mark.parametrize("fails", [False, True], ids=["written", "failed"])
async def test_a_repeat_is_answered_when_the_first_is_durable(one: Limpet, *, fails: bool) -> None:
    """And if the first could not be written, it is written itself."""
    journal = journal_of(one)
    asked, go = asyncio.Event(), asyncio.Event()

    async def commit(commits: Sequence[Commit]) -> tuple[Committed, ...]:
        if commits[0].drafts[0].type == "audit.denied" and not go.is_set():
            asked.set()
            await go.wait()
            if fails:
                raise limpet.errors.StoreFull("disk")
        return await journal.commit(commits)

    audit = Audit(journal.store, commit, journal.new_id)

    async def record() -> None:
        await audit.record(BOB, "read", session(), allowed=False, code="access_denied")

    first = asyncio.create_task(record())
    await asked.wait()
    second = asyncio.create_task(record())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    go.set()
    if fails:
        with pytest.raises(limpet.errors.StoreFull):
            await first
    else:
        await first
    await second
    await audit.close()
    (found,) = (await one.audit()).items
    assert found.repeats == (0 if fails else 1)


async def test_counts_are_written_when_the_store_is_closed(file_url: str) -> None:
    """So only a crash can lose those of its last second."""
    async with limpet.open(file_url) as lp:
        for _ in range(3):
            await denied(lp, BOB, session())
    async with limpet.open(file_url) as lp:
        (record,) = (await lp.audit()).items
    assert record.repeats == 2


async def test_no_verb_of_a_user_reaches_the_audit(one: Limpet) -> None:
    """It is written by decisions alone."""
    await denied(one, BOB, session())
    key = log_of("support")
    other = await limpet.open("memory://")
    for call in (
        lambda: one.get(key),
        lambda: one.delete(key),
        lambda: one.erase(key),
        lambda: one.erase_user(key.app, key.user),
        lambda: one.copy(key, to=other),
        lambda: one.create(key.app, key.user, "x"),
    ):
        with pytest.raises(ReservedApp):
            await call()
    await other.close()
    assert not (await one.list()).items


async def test_names_of_an_erased_user_are_keyed_hashes_from_then_on(
    url: str, tmp_path: Path
) -> None:
    """In records about the user and by the user, and in the bytes of the file; the chain holds."""
    async with limpet.open(url) as lp:
        eve = Principal("user:evezz", role="owner", app="support", user="evezz")
        await lp.create("support", "evezz", "chatzz")
        await denied(lp, BOB, session("chatzz", "evezz"))
        await audit_in(lp).record(eve, "share", session("chatzz", "evezz"), allowed=True)
        await lp.erase_user("support", "evezz")
        by_eve, about_eve = (await lp.audit()).items
        assert by_eve.principal.startswith("user:~")
        assert about_eve.principal == "user:bob"
        assert about_eve.resource == by_eve.resource
        assert about_eve.resource.split("/")[1] == by_eve.principal.removeprefix("user:")
        assert "evezz" not in f"{by_eve}{about_eve}"
        assert "chatzz" not in f"{by_eve}{about_eve}"
        assert not (await lp.audit(principal="user:evezz")).items
        report = await lp.maintenance.verify()
        assert report.ok, str(report)
        # Who comes back under the name is another.
        await denied(lp, eve, session("c9", "evezz"))
        newest = (await lp.audit()).items[0]
        assert (newest.principal, newest.resource) == ("user:evezz", "support/evezz/c9")
        await lp.erase_user("support", "evezz")
    for file in tmp_path.iterdir():
        assert b"evezz" not in file.read_bytes()


async def test_the_id_of_an_erased_session_leaves_the_audit(lp: Limpet, tmp_path: Path) -> None:
    """Erasing forgets the key; who asked stays."""
    await lp.create("support", "ada", "secretid")
    await denied(lp, BOB, session("secretid"))
    await audit_in(lp).record(ADA, "erase", session("secretid"), allowed=True)
    await lp.erase("support", "ada", "secretid")
    await denied(lp, BOB, session("secretid"), "write")
    records = (await lp.audit()).items
    assert [r.principal for r in records] == ["user:bob", "user:ada", "user:bob"]
    assert all(r.resource.startswith("support/ada/~") for r in records)
    assert (await lp.maintenance.verify()).ok
    for file in tmp_path.glob("*.db*"):
        assert b"secretid" not in file.read_bytes()


async def test_an_operation_and_its_record_are_one_commit(lp: Limpet) -> None:
    """If the operation is refused, nothing is recorded; if it happens, its record is there."""
    s = await lp.create("support", "ada", "c1", actor="user:ada")
    journal = journal_of(lp)
    (record,) = await audit_in(lp).commits(ADA, [AllowedOperation("lifecycle", session())])
    draft = journal.prepare(limpet.Draft(type="note.made", data={}), "user:ada")
    with pytest.raises(limpet.errors.SessionConflict):
        await journal.commit((Commit(s.key, (draft,), 99), record))
    assert not (await lp.audit()).items
    await journal.commit((Commit(s.key, (draft,), 1), record))
    (seen,) = (await lp.audit()).items
    assert (seen.action, seen.allowed) == ("lifecycle", True)


async def test_two_processes_write_one_chain(file_url: str) -> None:
    """Each through its own handle; the log of an app is one."""
    async with limpet.open(file_url) as first, limpet.open(file_url) as second:
        await asyncio.gather(
            *[denied(lp, BOB, session(f"c{n}")) for n, lp in enumerate([first, second] * 5)]
        )
        assert len((await first.audit()).items) == 10
        assert (await first.maintenance.verify()).ok


# --- exports -------------------------------------------------------------------------------------


async def _filled(lp: Limpet) -> None:
    for number in range(5):
        await denied(lp, BOB, session(f"c{number}"))
    await denied(lp, BOB, session("c4"))
    await audit_in(lp).record(ADA, "share", session(), allowed=True)
    await denied(lp, ADMIN, session("s1", "eve", "shop"))


async def test_an_export_verifies_offline_and_shows_the_names(lp: Limpet, tmp_path: Path) -> None:
    """Also by the script alone, which imports nothing of Limpet."""
    await _filled(lp)
    file = tmp_path / "audit.jsonl"
    made = await lp.export_audit(file)
    found = limpet.check_audit(file, links=made.links)
    assert found.logs == made.logs
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    shown = [line["record"] for line in lines[1:] if "principal" in line["record"]]
    assert {r["principal"] for r in shown} == {"user:bob", "user:ada", "admin:root"}
    assert "support/ada/c3" in {r["resource"] for r in shown}
    script = Path(audit_check.__file__)
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(script), str(file), stdout=subprocess.PIPE
    )
    said, _ = await done.communicate()
    assert done.returncode == 0
    assert said.startswith(b"valid:")
    with pytest.raises(limpet.errors.BundleRefused):
        await lp.export_audit(file)


def _changed(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"c3", b"c9") for line in lines]


def _renamed(lines: list[bytes]) -> list[bytes]:
    """The name that is shown and the one that fits the hash."""
    return [line.replace(b'"name":"bob"', b'"name":"tom"') for line in lines]


def _allowed(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"audit.denied", b"audit.allowed") for line in lines]


def _retimed(lines: list[bytes]) -> list[bytes]:
    first = json.loads(lines[2])
    first["at_us"] += 1
    return [*lines[:2], json.dumps(first).encode(), *lines[3:]]


@pytest.mark.parametrize(
    "change",
    [
        _changed,
        _renamed,
        _allowed,
        _retimed,
        lambda lines: [*lines[:4], *lines[5:]],
        lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[1:],
        lambda lines: [],
        lambda lines: [*lines[:-1], lines[-1][:-9]],
    ],
    ids=[
        "changed",
        "renamed",
        "allowed",
        "retimed",
        "removed",
        "swapped",
        "cut",
        "added",
        "headless",
        "empty",
        "torn",
    ],
)
async def test_a_file_that_was_changed_is_found_out(
    one: Limpet, tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    """Each change of a line, or of their order, is refused."""
    await _filled(one)
    file, other = tmp_path / "audit.jsonl", tmp_path / "other.jsonl"
    await one.export_audit(file)
    lines = file.read_bytes().splitlines()
    forged = change(lines)
    assert forged != lines
    other.write_bytes(b"\n".join(forged) + b"\n")
    with pytest.raises(AuditInvalid):
        limpet.check_audit(other)


async def test_every_changed_byte_of_an_export_is_found_out(one: Limpet, tmp_path: Path) -> None:
    """Except for white space, which says nothing; the manifest by the links that were noted."""
    await denied(one, BOB, session())
    file = tmp_path / "audit.jsonl"
    made = await one.export_audit(file)
    raw = file.read_bytes()
    time = raw.index(b'"at":') + 5, raw.index(b'"logs"')  # of the export: it is only a note
    for at in range(len(raw)):
        if time[0] <= at < time[1] or raw[at : at + 1] == b"\n":
            continue
        changed = bytearray(raw)
        changed[at] ^= 1
        file.write_bytes(changed)
        try:
            limpet.check_audit(file, links=made.links)
        except AuditInvalid:
            continue
        raise AssertionError(f"the change at byte {at} passes: {raw[at - 20 : at + 20]!r}")


async def test_a_file_whose_end_was_cut_and_whose_manifest_fits_is_found_by_the_link(
    one: Limpet, tmp_path: Path
) -> None:
    """A forger can build a chain, and not the link that was noted."""
    await denied(one, BOB, session("c1"))
    shorter, whole = tmp_path / "short.jsonl", tmp_path / "whole.jsonl"
    await one.export_audit(shorter)
    await denied(one, BOB, session("c2"))
    made = await one.export_audit(whole)
    limpet.check_audit(shorter)
    with pytest.raises(AuditInvalid, match="noted"):
        limpet.check_audit(shorter, links=made.links)


async def test_a_store_with_keys_signs_its_export(tmp_path: Path) -> None:
    """Another key, and a file without receipts, are refused."""
    pytest.importorskip("cryptography")
    file, plain = tmp_path / "audit.jsonl", tmp_path / "plain.jsonl"
    async with limpet.open("memory://", keys=key_file(tmp_path / "m")) as lp:
        await denied(lp, BOB, session())
        made = await lp.export_audit(file)
        public = lp.keys.public_key
    assert made.signed
    assert limpet.check_audit(file, public_key=public).signed
    async with limpet.open("memory://", keys=key_file(tmp_path / "n")) as lp:
        other = lp.keys.public_key
    with pytest.raises(AuditInvalid):
        limpet.check_audit(file, public_key=other)
    async with limpet.open("memory://") as lp:
        await denied(lp, BOB, session())
        await lp.export_audit(plain)
    with pytest.raises(AuditInvalid, match="receipt"):
        limpet.check_audit(plain, public_key=public)


async def test_an_export_of_some_records_hides_the_others_and_still_verifies(
    one: Limpet, tmp_path: Path
) -> None:
    """Of the others it has digests, and no name."""
    await _filled(one)
    file = tmp_path / "audit.jsonl"
    made = await one.export_audit(file, principal="user:ada")
    assert limpet.check_audit(file, links=made.links).logs == made.logs
    text = file.read_text()
    assert "user:ada" in text
    assert "user:bob" not in text


async def test_an_export_after_erasure_verifies_and_has_no_names(
    one: Limpet, tmp_path: Path
) -> None:
    """The keyed hash stays, and nothing opens it."""
    await _filled(one)
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    await one.export_audit(before, app="support")
    await one.erase_user("support", "bob")
    made = await one.export_audit(after, app="support")
    limpet.check_audit(after, links=made.links)
    assert "user:bob" in before.read_text()
    assert "user:bob" not in after.read_text()


# --- tampering -----------------------------------------------------------------------------------


async def test_verify_finds_an_audit_that_was_changed_in_the_file(tmp_path: Path) -> None:
    """A record that somebody edits in the database breaks the chain."""
    import sqlite3

    file = tmp_path / "support.db"
    async with limpet.open(f"sqlite:///{file}") as lp:
        await denied(lp, BOB, session("c1"))
        await denied(lp, BOB, session("c2"))
    with sqlite3.connect(file) as conn:
        names = [row[1] for row in conn.execute("PRAGMA table_info(events)")]
        assert "actor" in names or "at_us" in names
        conn.execute("UPDATE events SET at_us = at_us + 1 WHERE seq = 2")
    conn.close()
    async with limpet.open(f"sqlite:///{file}") as lp:
        report = await lp.maintenance.verify()
    assert not report.ok
    assert any(f.key is not None and f.key.app == "$$audit" for f in report.findings)


# --- what guards record --------------------------------------------------------------------------


async def test_a_sensitive_operation_is_recorded_in_its_own_commit(lp: Limpet) -> None:
    """One record for each, and none if the operation is refused by the store."""
    await lp.create("support", "ada", "c1")
    s = await lp.acting_as(ADA).get("support", "ada", "c1")
    await s.suspend()
    (record,) = (await lp.audit()).items
    assert (record.principal, record.action, record.allowed) == ("user:ada", "lifecycle", True)
    assert record.resource == "support/ada/c1"
    suspended = await lp.get("support", "ada", "c1")
    (event,) = await suspended.read(types=["session.suspended"])
    assert event.at == record.at  # one commit has one time
    newest = record.seq
    with pytest.raises(limpet.errors.InvalidTransition):
        await s.suspend()
    assert (await lp.audit()).items[0].seq == newest


async def test_delete_and_erase_record_the_intent_first(lp: Limpet) -> None:
    """Also where nothing comes of it."""
    s = await lp.create("support", "ada", "c1", actor="user:ada")
    await s.fork(id="c2")
    acting = lp.acting_as(ADA)
    with pytest.raises(limpet.errors.SessionHasForks):
        await acting.erase("support", "ada", "c1")
    assert {r.action for r in (await lp.audit(denied=False)).items} == {"erase"}
    before = len((await lp.audit()).items)
    assert await acting.delete("support", "ada", "c2")
    assert len((await lp.audit()).items) > before
    assert not (await lp.audit(denied=True)).items


async def test_ordinary_reads_and_writes_are_not_recorded(one: Limpet) -> None:
    """They are the session's own events, with the principal as actor."""
    acting = one.acting_as(ADA)
    s = await acting.create("support", "ada", "c1", state={"n": 1})
    event = await s.append("note.made", {}, set={"n": 2})
    await acting.get("support", "ada", "c1")
    assert event.actor == "user:ada"
    assert not (await one.audit()).items


async def test_a_denial_that_cannot_wait_is_recorded_too(one: Limpet) -> None:
    """A partial event, before its caller is answered; a principal that would be wider."""
    await one.create("support", "ada", "c1")
    viewer = Principal("user:ada", role="viewer", app="support", user="ada")
    s = await one.acting_as(viewer).get("support", "ada", "c1")
    with pytest.raises(AccessDenied):
        await s.append("agent.message", {"text": "x"}, partial=True)
    log = await journal_of(one).store.load(log_of("support"), tail=9)
    assert log.events[-1].type == "audit.denied"
    with pytest.raises(AccessDenied):
        one.acting_as(ADA).acting_as(BOB)
    assert [r.action for r in (await one.audit()).items] == ["acting_as", "write"]


async def test_not_even_an_admin_writes_to_the_audit(one: Limpet) -> None:
    """Neither to the log of an app nor to the names in it."""
    await denied(one, BOB, session())
    store = journal_of(one.acting_as(ADMIN)).store
    whole = journal_of(one)
    for key in (log_of("support"), Key("$$audit-names", "7/support/ada", "session/c1")):
        draft = whole.prepare(limpet.facts.labeled({"x": "y"}), "system:audit")
        with pytest.raises(AccessDenied):
            await store.commit((Commit(key, (draft,)),))
        with pytest.raises(AccessDenied):
            await store.delete(key)
        with pytest.raises(AccessDenied):
            await store.erase(key)
    assert (await store.load(log_of("support"), tail=0)).head.version > 1


async def test_an_auditor_reads_the_log_of_its_app_through_a_guarded_store(lp: Limpet) -> None:
    """As a client of a server does: records and names of its own app, and of no other."""
    await denied(lp, BOB, session())
    await denied(lp, ADMIN, session("s1", "eve", "shop"))
    await denied(lp, ADMIN, Resource("store", "*"), "keys")
    for who, seen in (
        (Principal("auditor:1", role="auditor", app="support"), {"support/ada/c1"}),
        (Principal("auditor:2", role="auditor", app="shop"), {"shop/eve/s1"}),
        (Principal("auditor:3", role="auditor"), {"support/ada/c1", "shop/eve/s1", "*"}),
    ):
        journal = journal_of(lp.acting_as(who))
        audit = Audit(journal.store, journal.commit, journal.new_id)
        page = await audit.page(AuditQuery(), limit=50)
        assert {record.resource for record in page.items} == seen
    journal = journal_of(lp.acting_as(BOB))
    with pytest.raises(AccessDenied):
        await Audit(journal.store, journal.commit, journal.new_id).page(AuditQuery(), limit=5)


async def test_a_denial_that_cannot_be_recorded_is_not_answered_as_one(tmp_path: Path) -> None:
    """The caller learns that the store failed, and is not let in."""
    url = f"sqlite:///{tmp_path}/support.db"
    async with limpet.open(url) as lp:
        await lp.create("support", "ada", "c1")
        acting = lp.acting_as(BOB)
        audit = audit_in(lp)

        async def full(commits: object) -> tuple[Committed, ...]:
            raise limpet.errors.StoreFull("disk")

        audit._commit = full
        with pytest.raises(limpet.errors.StoreFull):
            await acting.get("support", "ada", "c1")


async def test_counts_that_are_late_are_records_of_their_own() -> None:
    """A process that stood still for minutes loses none of them."""
    clock = Clock()
    async with limpet.open("memory://") as lp:
        journal = journal_of(lp)
        store = ClockedStore(journal.store, clock)
        audit = Audit(store, journal.commit, journal.new_id)
        for _ in range(4):
            await audit.record(BOB, "read", session(), allowed=False, code="access_denied")
        clock.us += 10 * 60 * 1_000_000
        await audit.record(BOB, "read", session(), allowed=False, code="access_denied")
        await audit.close()
        assert sorted(r.repeats for r in (await lp.audit()).items) == [0, 0, 2]


class Clock:
    us = 1_800_000_000_000_000


class ClockedStore:
    """A store whose time is told."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def now_us(self) -> int:
        return self._clock.us


# --- before the answer, where nothing can be awaited ---------------------------------------------


def written(file: Path) -> int:
    """How many denials the file has, as another process sees it, without an await."""
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as conn:
        ((many,),) = conn.execute("SELECT count(*) FROM events WHERE type = 'audit.denied'")
    return int(many)


@pytest.mark.parametrize("keys", [None, "memory:"])
async def test_a_refused_widening_is_in_the_file_before_it_is_answered(
    tmp_path: Path, keys: str | None
) -> None:
    """Also of a verb without await: nothing of this loop runs between the refusal and the look."""
    file = tmp_path / "store.db"
    async with limpet.open(f"sqlite:///{file}", keys=keys) as lp:
        acting = lp.acting_as(ADA)
        for verb in (lambda: acting.acting_as(BOB), lambda: acting.policies.lifecycle("support")):
            before = written(file)
            with pytest.raises(AccessDenied):
                verb()
            assert written(file) == before + 1
        with pytest.raises(AccessDenied):  # the same again: it is counted
            acting.acting_as(BOB)
        assert written(file) == before + 1
        (record,) = (await lp.audit(principal="user:ada", denied=True, app="support")).items[-1:]
        assert (record.action, record.repeats) == ("acting_as", 1)
        assert (await lp.maintenance.verify()).ok


async def test_a_refused_widening_is_on_the_server_before_it_is_answered(
    postgres_store_url: str,
) -> None:
    """The same there: another connection counts, from another thread, while this loop stands."""

    async def count() -> int:
        conn = await asyncpg.connect(postgres_store_url)
        try:
            many = await conn.fetchval(
                "SELECT count(*) FROM limpet.events WHERE type = 'audit.denied'"
            )
        finally:
            await conn.close()
        return int(many)

    def written_there() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(count())).result()

    async with limpet.open(postgres_store_url) as lp:
        acting = lp.acting_as(ADA)
        with pytest.raises(AccessDenied):
            acting.acting_as(BOB)
        assert written_there() == 1


async def test_a_widening_whose_denial_cannot_be_recorded_is_not_answered_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is locked for longer than a caller is held: StoreError, not AccessDenied."""
    monkeypatch.setattr("limpet.security.audit._NOW_SECONDS", 0.1)
    async with limpet.open(f"sqlite:///{tmp_path}/store.db") as lp:
        acting = lp.acting_as(ADA)
        await acting.create("support", "ada", "c1")
        held = apsw.Connection(str(tmp_path / "store.db"))
        held.set_busy_timeout(60_000)  # the store's own housekeeping may be at work
        held.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError):
            acting.acting_as(BOB)
        held.execute("ROLLBACK")
        held.close()


async def test_a_streamed_partial_that_is_refused_is_in_the_file_first(tmp_path: Path) -> None:
    """The rules change while a turn speaks: its next piece is refused, on record."""
    file, rules = tmp_path / "store.db", tmp_path / "rules.cedar"
    rules.write_text("permit(principal, action, resource);")
    agent = Principal("agent:main", role="agent", app="support", user="ada")
    counts: list[tuple[int, int]] = []

    async def pieces() -> AsyncIterator[str]:
        yield "one"
        forbids = 'forbid(principal, action == Action::"write", resource);'
        rules.write_text("permit(principal, action, resource);" + forbids)
        counts.append((written(file), 0))
        yield "two"

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.stream("say", pieces())
        except AccessDenied:
            counts.append((written(file), 1))
            raise

    async with limpet.open(f"sqlite:///{file}", policies=rules) as lp:
        s = await lp.create("support", "ada", "c1")
        await s.append("user.message", {"text": "hi"}, actor="user:ada")
        with suppress(AccessDenied):
            await lp.acting_as(agent).wake(s.key, harness)
    assert counts == [(0, 0), (1, 1)]


# --- keys ----------------------------------------------------------------------------------------


async def test_what_is_done_with_keys_is_in_the_audit(tmp_path: Path) -> None:
    """By a program without a principal too; by whom else it was tried; and of which session."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url, keys="memory:") as lp:
        s = await lp.create("support", "ada", "c1")
        await lp.keys.rotate()
        await lp.keys.renew(s.key)
        await lp.keys.anchor()
        await lp.acting_as(Principal("user:root", role="admin")).keys.rotate()
        with pytest.raises(AccessDenied):
            await lp.acting_as(ADA).keys.renew(s.key)
        said = [(r.principal, r.resource, r.allowed) for r in (await lp.audit()).items]
        assert {r.action for r in (await lp.audit()).items} == {"keys"}
        assert sorted(said) == [
            ("system", "*#anchor", True),
            ("system", "*#rotate", True),
            ("system", "support/ada/c1", True),
            ("user:ada", "*#renew", False),
            ("user:root", "*#rotate", True),
        ]
        assert (await lp.maintenance.verify()).ok


def test_restoring_with_keys_is_in_the_audit(tmp_path: Path) -> None:
    """An anchor that moves back says who let it."""
    url, keys = f"sqlite:///{tmp_path}/store.db", "memory:"
    with limpet.open_sync(url, keys=keys) as lp:
        s = lp.create("support", "ada", "c1")
        lp.maintenance.backup(tmp_path / "copy.db")
        s.append("note.made", actor="user:ada")
    limpet.restore(tmp_path / "copy.db", url, replace=True, keys=keys)
    with limpet.open_sync(url, keys=keys) as lp:
        (record,) = lp.audit().items
        assert (record.principal, record.action, record.resource) == ("system", "keys", "*#anchor")
        assert lp.maintenance.verify().ok
