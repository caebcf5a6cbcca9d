"""The mutation check itself: what it changes, what it leaves alone, and that survivors survive."""

from __future__ import annotations

import pytest

from mutants.equivalent import EQUIVALENT
from mutants.mutate import mutants
from mutants.targets import TARGETS


def changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants(source, "m.py")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n  g()", ["g() -> pass"]),
        ("def f():\n  raise E('text', 1)", ["raise E('text', 1) -> pass"]),
        ("def f(a):\n  return a", ["return a -> return None"]),
        ("def f(a):\n  if a: b = a", ["a -> not a"]),
        ("def f(a):\n  if not a: b = a", ["not a -> a"]),
        ("def f(a):\n  b = a == c", ["b = a == c -> b = a != c"]),
        (
            "def f(a):\n  b = a < c <= d",
            ["b = a < c <= d -> b = a <= c <= d", "b = a < c <= d -> b = a < c < d"],
        ),
        ("def f(a):\n  b = a in c", ["b = a in c -> b = a not in c"]),
        ("def f(a):\n  b = a and c", ["b = a and c -> b = c", "b = a and c -> b = a"]),
        ("def f(a):\n  b = a + c", ["b = a + c -> b = a - c"]),
        ("A = 5", ["A = 5 -> A = 6"]),
        ("A = True", ["A = True -> A = False"]),
        ("A = b'x'", ["A = b'x' -> A = b'x!'"]),
        ("def f(a):\n  a[c] = d", ["a[c] = d -> pass"]),
        ("def f(a):\n  a += c", ["a += c -> pass"]),
    ],
)
def test_each_kind_of_fault_is_made(source: str, expected: list[str]) -> None:
    """One mutant for each fault, and no other."""
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""',
        "def f():\n  '''A text.'''",
        "import a",
        "def f(a):\n  assert a, 'x'",
        "A: TypeAlias = B | None",
        "if TYPE_CHECKING:\n  import a",
        "def f(a: Literal['x']) -> Literal['y']: ...",
        "class A(B, gc=False): ...",
        "A = f'text {b + 1}'",
        "A = 'a text for people'",
    ],
)
def test_what_carries_no_promise_is_left_alone(source: str) -> None:
    """Texts for people, types, asserts."""
    assert changes(source) == []


def test_a_mutant_runs_and_the_others_are_not_in_it() -> None:
    """Each has one fault, with the line and the function it is in."""
    source = "A = 5\nclass C:\n  def f(self):\n    return 7\n"
    one, two, three = mutants(source, "m.py")
    found: dict[str, object] = {}
    exec(one.code, found)
    assert found["A"] == 6
    assert found["C"]().f() == 7  # type: ignore[operator]
    exec(three.code, found)
    assert found["A"] == 5
    assert found["C"]().f() == 8  # type: ignore[operator]
    assert (two.line, two.function, three.line) == (4, "C.f", 4)


def test_every_exception_has_a_reason_and_a_target() -> None:
    """The table of equivalent mutants names modules that are checked, and says why."""
    for (module, _, change), reason in EQUIVALENT.items():
        assert module in TARGETS
        assert " -> " in change
        assert reason.endswith(".")
