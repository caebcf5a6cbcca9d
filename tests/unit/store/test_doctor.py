"""Reports as checks: each finding under its name, with what to do."""

from __future__ import annotations

import pytest

from limpet import Check, Diagnosis, Finding, Key, Report
from limpet.store.coding.codec import NO_SEAL
from limpet.store.doctor import read_checks
from limpet.store.protocol import plural, size

KEY = Key("shop", "ada", "1")


def test_a_clean_report_is_well_in_every_part() -> None:
    """No finding, no advice, and the count of what was read."""
    checks = read_checks(Report(2, 1_234, ()))
    assert [check.name for check in checks] == ["log", "folds", "indexes"]
    assert all(check.ok and not check.advice for check in checks)
    assert checks[0].found.startswith("2 sessions, 1,234 events")


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("event", "log"),
        ("session", "log"),
        ("head", "folds"),
        ("state", "folds"),
        ("snapshot", "folds"),
        ("scope", "folds"),
        ("tombstone", "folds"),
        ("whatever comes", "folds"),
        ("label", "indexes"),
        ("file", "indexes"),
    ],
)
def test_a_finding_is_a_problem_of_its_part_alone(where: str, name: str) -> None:
    """The check names the session and the event, and says what to do."""
    checks = read_checks(Report(1, 1, (Finding(where, "is wrong", KEY, 3),)))
    (bad,) = [check for check in checks if not check.ok]
    assert (bad.name, bad.severity) == (name, "problem")
    assert bad.found == f"shop/ada/1 {where} 3 is wrong"
    assert bad.advice


def test_many_findings_are_shown_in_part() -> None:
    """The first few, and how many more."""
    findings = tuple(Finding("event", "is wrong", KEY, seq) for seq in range(1, 11))
    assert read_checks(Report(1, 10, findings))[0].found.endswith("; and 7 more")


def test_a_body_that_needs_a_seal_is_not_called_damaged() -> None:
    """Without the seal the doctor warns that it could not look, and where it could."""
    checks = read_checks(Report(1, 1, (Finding("event", NO_SEAL, KEY, 1),)))
    assert [c.name for c in checks if not c.ok] == ["seal"]
    assert checks[-1].severity == "warning"


def test_a_diagnosis_is_ok_without_problems() -> None:
    """Warnings alone do not make a store unwell."""
    report = Report(0, 0, ())
    well, warned = Check("a", "x"), Check("b", "y", "warning", "Do.")
    assert Diagnosis((well, warned), report).ok
    assert not Diagnosis((well, Check("c", "z", "problem", "Do.")), report).ok


def test_words_for_people() -> None:
    """Numbers, sizes and findings without a place."""
    assert [plural(n, "event") for n in (0, 1, 2_000)] == ["0 events", "1 event", "2,000 events"]
    assert [size(n) for n in (0, 4_096, 3 * 2**20, 5 * 2**30)] == [
        "0 bytes",
        "4 KiB",
        "3 MiB",
        "5.0 GiB",
    ]
    assert str(Finding("file", "is torn")) == "file is torn"
