"""Tools made of Python functions: `limpet.tool` reads the schema from signature and docstring.

A model's input is checked against that signature before the function sees it, and arrives with
the types that the signature names: dates, enums, dataclasses, structs and pydantic models too.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, Final, overload

import msgspec

from limpet.errors import InvalidInput
from limpet.model import described
from limpet.session.conversation.shapes import safe_name
from limpet.session.life.tools import OnUnknown, Tool
from limpet.session.runs.setup import Permission

KEY: Final = "idempotency_key"  # filled in by the effect, so no model sees it
_is_allowed: ContextVar[bool] = ContextVar("limpet_tool_is_allowed", default=False)
_SECTION: Final = re.compile(r"^(Args|Arguments|Parameters|Params):\s*$")
_NAMED: Final = re.compile(r"^\s*(?::param\s+)?\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s+(\S.*)$")
_END: Final = re.compile(r"^(Returns|Return|Raises|Yields|Example|Examples|Note|Notes):\s*$")


class ApprovalNeeded(Exception):
    """The function of a tool wants a person to allow this call, and has done nothing yet.

    The function is called again once the call is allowed: then `is_allowed()` is true. For agents
    of frameworks, whose tools decide while they run; a Tool of ours has a permission.
    """


def is_allowed() -> bool:
    """True inside the function of a tool if a person has allowed this call."""
    return _is_allowed.get()


@contextmanager
def allowing(*, is_allowed: bool) -> Iterator[None]:
    """Code inside is called by a tool call that a person has allowed, or that nobody was asked
    about."""
    token = _is_allowed.set(is_allowed)
    try:
        yield
    finally:
        _is_allowed.reset(token)


@overload
def tool(fn: Callable[..., Any]) -> Tool: ...
@overload
def tool(
    fn: None = None,
    *,
    permission: Permission = "always_allow",
    on_unknown: OnUnknown = "ask",
    pure: bool = False,
    timeout: float | timedelta | None = None,
    retries: int = 0,
    record_args: bool = True,
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    *,
    permission: Permission = "always_allow",
    on_unknown: OnUnknown = "ask",
    pure: bool = False,
    timeout: float | timedelta | None = None,
    retries: int = 0,
    record_args: bool = True,
    name: str | None = None,
    description: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a `limpet.Tool` of a function, sync or async: `@limpet.tool` or `@limpet.tool(…)`.

    Its name, description and JSON schema come from the signature and the docstring; a line
    `amount: How much.` under `Args:` describes a parameter. A parameter `idempotency_key` is not
    shown to the model and receives the key of the effect. `permission` is always_allow, always_ask
    or deny. `pure` says that the function only looks at things: it runs as a step, without a record
    of its intent. A try that raises is repeated `retries` times under the same key. Raises
    InvalidInput for a signature that no model can fill, ToolInvalid for a generator function.
    """

    def make(function: Callable[..., Any]) -> Tool:
        if not callable(function):
            raise InvalidInput(f"limpet.tool takes a function, not {described(function)}.")
        if on_unknown not in ("ask", "retry"):
            raise InvalidInput(f"on_unknown is 'ask' or 'retry', not {described(on_unknown)}.")
        text, parameters = _documented(function)
        return Tool(
            name=name or _name(function),
            schema=_schema(function, parameters),
            permission=permission,
            description=text if description is None else description,
            function=function,
            on_unknown=on_unknown,
            pure=pure,
            timeout=timeout,
            retries=retries,
            record_args=record_args,
        )

    return make if fn is None else make(fn)


def tools_of(given: Iterable[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    """Tools, made of functions where they are not. Raises InvalidInput if two have one name,
    also if only the characters differ that models do not accept."""
    if isinstance(given, Tool) or not isinstance(given, Iterable):
        raise InvalidInput(f"tools is a list of tools, not {described(given)}.")
    tools = [each if isinstance(each, Tool) else tool(each) for each in given]
    names: dict[str, str] = {}
    for each in tools:
        shown = safe_name(each.name)
        if (other := names.get(shown)) == each.name:
            raise InvalidInput(f"two tools are named {other!r}. Give each tool a name of its own.")
        if other is not None:
            raise InvalidInput(
                f"the tools {other!r} and {each.name!r} are both {shown!r} for a model. Rename one."
            )
        names[shown] = each.name
    return tuple(tools)


def arguments_of(tool: Tool, input: Any) -> dict[str, Any]:
    """Return the function's arguments for a model's input. Raises InvalidInput, saying where."""
    assert tool.function is not None
    if not isinstance(input, Mapping):
        raise InvalidInput(f"the input of {tool.name!r} must be an object.")
    kind = input_type(tool.function)
    try:
        # As JSON, in which a date is a text.
        raw = msgspec.json.encode(_whole(input))
        read = msgspec.json.decode(raw, type=kind, dec_hook=_from_json)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"the input of {tool.name!r} does not fit its schema: {error}."
        ) from error
    given = {each for each in kind.__struct_fields__ if each in input}
    return {each: getattr(read, each) for each in given}  # defaults are the function's own


@lru_cache(maxsize=1024)
def input_type(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Return a struct with the parameters of a function. Raises InvalidInput."""
    name = _name(function)
    try:
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except NameError as error:
        raise InvalidInput(
            f"the annotations of {name} cannot be read: {error}. Import the types that it names."
        ) from error
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidInput(f"{name} takes *{parameter.name}: a tool names its parameters.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidInput(f"{name} takes {parameter.name} by position only: remove the `/`.")
        if parameter.name == KEY:
            continue
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            default = parameter.default if _is_simple(parameter) else None
            fields.append((parameter.name, hint, msgspec.field(default=default)))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters; empty for a built-in that has no signature."""
    if type(function) is FunctionType and not function.__dict__:  # no decorator has said otherwise
        code = function.__code__
        variable = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variable]
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


# --- private ------------------------------------------------------------------------------------


def _annotated(function: Callable[..., Any]) -> Any:
    """Return what carries the annotations: of a callable object, its method."""
    if inspect.isfunction(function) or inspect.ismethod(function):
        return function
    return getattr(function, "func", None) or type(function).__call__


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _is_simple(parameter: inspect.Parameter) -> bool:
    """True if the schema can show the default; another one is the function's own business."""
    return isinstance(parameter.default, (str, int, float, bool, type(None)))


def _schema(function: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    kind = input_type(function)
    try:
        whole = msgspec.json.schema(kind, schema_hook=_to_schema)
    except TypeError as error:
        raise InvalidInput(
            f"the parameters of {kind.__name__} have no JSON schema: "
            f"{str(error).splitlines()[-1].removesuffix('.')}. Annotate them with simple types, "
            "dataclasses, msgspec structs or pydantic models."
        ) from error
    definitions = dict(whole["$defs"])
    schema: dict[str, Any] = definitions.pop(whole["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    for parameter in inspect.signature(function).parameters.values():
        shown = schema["properties"].get(parameter.name)
        if shown is not None and not _is_simple(parameter):
            shown.pop("default", None)
        if shown is not None and parameter.name in texts:
            schema["properties"][parameter.name] = {"description": texts[parameter.name], **shown}
    return {**schema, "$defs": definitions} if definitions else schema


def _whole(value: Any) -> Any:
    """JSON's 5.0 is an integer as good as 5; a float takes both."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, (list, tuple)) else value


def _to_schema(kind: type[Any]) -> dict[str, Any]:
    """The schema of a pydantic model; other types that msgspec does not know have none."""
    if (schema := getattr(kind, "model_json_schema", None)) is not None:
        return dict(schema())
    raise NotImplementedError  # msgspec's word for a type that a hook does not know


def _from_json(kind: type[Any], value: Any) -> Any:
    if (validate := getattr(kind, "model_validate", None)) is not None:
        return validate(value)
    raise NotImplementedError  # msgspec's word for a type that a hook does not know


def _documented(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and what it says about each parameter."""
    text: list[str] = []
    parameters: dict[str, str] = {}
    within, last = False, ""
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            within = True
        elif _END.match(line):
            within, last = False, ""
            break
        elif (match := _NAMED.match(line)) and (within or line.lstrip().startswith(":param")):
            last = match[1]
            parameters[last] = match[2].strip()
        elif within and last and line.startswith(" ") and line.strip():
            parameters[last] += f" {line.strip()}"
        elif not within:
            text.append(line)
    return "\n".join(text).strip(), parameters
