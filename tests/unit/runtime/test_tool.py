"""limpet.tool: the schema that a model sees, and the arguments that the function gets."""

from __future__ import annotations

import enum
import functools
import inspect
import math
from datetime import date, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from limpet import InvalidInput
from limpet.runtime.tool import arguments_of, parameters_of, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(msgspec.Struct):
    street: str
    number: int


class Parcel(pydantic.BaseModel):
    grams: int


def test_a_function_becomes_a_tool_with_the_schema_of_its_signature() -> None:
    """Name, description and parameters come from the code; the key of the effect is not shown."""

    @tool(permission="always_ask", timeout=timedelta(seconds=5))
    async def pay(amount: float, to: str = "shop", *, idempotency_key: str) -> str:
        """Pay somebody.

        Args:
            amount: How much, in euros
                and cents.
            to (str): Whom.

        Returns:
            A receipt.
        """
        return f"{amount} {to} {idempotency_key}"

    assert (pay.name, pay.description) == ("pay", "Pay somebody.")
    assert (pay.permission, pay.on_unknown, pay.pure) == ("always_ask", "ask", False)
    assert pay.timeout == timedelta(seconds=5)
    assert pay.schema == {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "description": "How much, in euros and cents."},
            "to": {"type": "string", "description": "Whom.", "default": "shop"},
        },
        "required": ["amount"],
        "additionalProperties": False,
    }


def test_a_tool_can_still_be_called() -> None:
    """The decorated function works as before, in tests for instance."""

    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert double.description == ""


def test_arguments_arrive_with_their_types() -> None:
    """JSON has neither dates nor enums; the signature says what is meant."""

    @tool
    def send(
        when: date, colour: Colour, to: Address, parcel: Parcel, of: Colour = Colour.RED
    ) -> None:
        """Send a parcel."""

    given = {"when": "2026-11-17", "colour": "red", "to": {"street": "A", "number": 5.0}}
    assert arguments_of(send, {**given, "parcel": {"grams": 3}}) == {
        "when": date(2026, 11, 17),
        "colour": Colour.RED,
        "to": Address("A", 5),
        "parcel": Parcel(grams=3),
    }
    assert send.schema["properties"]["parcel"]["properties"]["grams"]["type"] == "integer"
    assert "default" not in send.schema["properties"]["of"]


@pytest.mark.parametrize(
    ("input", "says"),
    [
        ({}, "missing required field `n`"),
        ({"n": "many"}, "Expected `int`, got `str` - at `$.n`"),
        ({"n": 1, "more": 2}, "unknown field `more`"),
        ([1], "must be an object"),
        (None, "must be an object"),
    ],
)
def test_a_wrong_input_is_refused_with_its_place(input: Any, says: str) -> None:
    """The text goes back to the model, so it says what to correct."""

    @tool
    def double(n: int) -> int:
        return 2 * n

    with pytest.raises(InvalidInput, match=says.replace("$", r"\$")):
        arguments_of(double, input)


def test_a_signature_that_no_model_can_fill_is_refused_at_once() -> None:
    """Not when the model calls it."""

    def many(*names: str) -> None: ...
    def more(**names: str) -> None: ...
    def placed(n: int, /) -> None: ...
    def odd(n: object | threading.Lock) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function in (many, more, placed, odd, "not a function"):
        with pytest.raises(InvalidInput):
            tool(function)  # type: ignore[arg-type]  # one of them is no function
    with pytest.raises(InvalidInput, match="on_unknown"):
        tool(on_unknown="guess")(many)  # type: ignore[call-overload]


@pytest.mark.parametrize("retries", [-1, 1.5, True, "two", None])
def test_retries_of_a_tool_are_a_number_from_0(retries: Any) -> None:
    """Refused where the tool is declared."""
    with pytest.raises(InvalidInput, match="retries"):
        tool(retries=retries)(lambda: None)
    assert tool(retries=2)(lambda: None).retries == 2


@pytest.mark.parametrize("timeout", [0, -1, "5", math.nan, timedelta(0), True])
def test_a_timeout_is_above_zero(timeout: Any) -> None:
    """It is refused where the tool is made, not when a model calls it."""
    with pytest.raises(InvalidInput, match="seconds above 0"):
        tool(timeout=timeout)(lambda at: at)


def test_a_parameter_without_a_schema_is_refused_in_one_line() -> None:
    """With what to annotate it with."""

    class Opaque:
        pass

    def look(at: Opaque) -> None:
        """Look."""

    look.__annotations__["at"] = Opaque
    with pytest.raises(InvalidInput, match=r"^the parameters of look .* pydantic models\.$"):
        tool(look)


def plain(a: int, /, b: int, *rest: int, c: int = 1, **more: int) -> None:
    """All kinds of parameters."""


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> None:
    """Has the parameters of what it wraps."""


@pytest.mark.parametrize(
    "function",
    [plain, wrapped, functools.partial(plain, 1), lambda idempotency_key: None, "x".join],
    ids=("plain", "wrapped", "partial", "lambda", "method"),
)
def test_the_parameters_are_those_of_the_signature(function: Any) -> None:
    """However they are found: in the code of a function that nobody has decorated, or asked for."""
    assert set(parameters_of(function)) == set(inspect.signature(function).parameters)
