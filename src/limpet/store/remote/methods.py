"""The methods that travel, derived from the protocols of `store`: a new method needs no code here.

`ABILITIES` lists the protocols that a server offers of its store. Each coroutine of theirs becomes
a `Method`: its arguments and its result have the forms of their annotations. What is not listed
below as a read is answered again from memory if it is repeated; what is not listed as repeatable
is not sent again to a server that was restarted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple

from limpet.errors import Asked
from limpet.model import Commit
from limpet.store.blobs import Blobs, KeepsBlobs
from limpet.store.leases import Deadlines, Leases
from limpet.store.marks import KeepsMarks, Marks
from limpet.store.overview import Overview
from limpet.store.protocol import (
    Compacts,
    Examined,
    Feed,
    Names,
    Performs,
    Progress,
    Records,
    SingleHeads,
    Store,
)
from limpet.store.remote.commits import COMMITS, RESULTS
from limpet.store.remote.forms import WireForm, encode, form_of

PROTOCOL: Final = 2  # raised by hand when the meaning of a message changes; see `version`


class Ability(NamedTuple):
    """A protocol whose methods travel, and how a store shows that it has it."""

    protocol: type
    shown_by: type | None = None  # None: every store has it
    part: str = ""  # the attribute of the store that has these methods; none: the store itself


ABILITIES: Final[tuple[Ability, ...]] = (
    Ability(Store),
    Ability(Leases, Leases),
    Ability(Deadlines, Deadlines),
    Ability(Feed, Feed),
    Ability(SingleHeads, SingleHeads),
    Ability(Records, Records),
    Ability(Names, Names),
    Ability(Compacts, Compacts),
    Ability(Examined, Examined),
    Ability(Overview, Overview),
    Ability(Performs, Performs),
    Ability(Blobs, KeepsBlobs, "blobs"),
    Ability(Marks, KeepsMarks, "marks"),
)
_OF_SESSIONS: Final = (
    "load load_many fold_at read read_ids rung naming names_since pending_inputs heads forks verify"
)
_OF_STORES: Final = "identity head changes touched position records base owners names_of"
_OF_SYSTEMS: Final = "examine waiting tally consult"
_OF_PARTS: Final = "head expired blobs.find blobs.chunk blobs.page blobs.keys marks.get"
READS: Final = frozenset(f"{_OF_SESSIONS} {_OF_STORES} {_OF_SYSTEMS} {_OF_PARTS}".split())
# Writes that leave the same if they are done twice. The ids of its drafts say so of a commit.
_TWICE: Final = "commit delete unpin erase erase_user compact renew release acquire claim"
REPEATABLE: Final = READS | frozenset(f"{_TWICE} blobs.finish blobs.drop marks.put".split())
_LEASING: Final = frozenset(("claim", "acquire", "renew"))


class Method(msgspec.Struct, frozen=True):
    """One method of a store, as it travels."""

    name: str  # with the part of the store that has it: "blobs.find"
    bind: type[Any]  # takes the arguments as the method does
    pack: Callable[[Any], Any]  # what `bind` made, as it is encoded
    sent: Any  # the type of the encoded arguments
    decode: Callable[[bytes], Any]  # the arguments, on the server
    unpack: Callable[[Any], Any]
    answer: WireForm
    decode_answer: Callable[[bytes], Any]
    progress: int | None = None  # the place of its progress callback among the arguments

    @property
    def part(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def verb(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def reads(self) -> bool:
        return self.name in READS or self.name.startswith("$")

    @property
    def repeatable(self) -> bool:
        """True if it may be sent again to a server that does not know of the first time."""
        return self.name in REPEATABLE or self.name.startswith("$")

    @property
    def asked(self) -> Asked:
        """The kind of call, for the error that says what is unknown if no answer comes."""
        if self.name == "commit":
            return "write"
        if self.reads:
            return "read"
        return "lease" if self.name in _LEASING else "change"

    def encode_answer(self, result: Any) -> bytes:
        pack = self.answer.pack
        return encode(result if pack is None else pack(result))

    def read_answer(self, raw: bytes) -> Any:
        """The result of a call. Raises msgspec.MsgspecError if it is none."""
        answer, unpack = self.decode_answer(raw), self.answer.unpack
        return answer if unpack is None else unpack(answer)


@lru_cache(maxsize=1)
def methods() -> Mapping[str, Method]:
    """Every method that travels, by its name."""
    by_name: dict[str, Method] = {}
    for ability in ABILITIES:
        for method in _methods_of(ability):
            by_name[method.name] = method
    return by_name


def methods_of(abilities: Sequence[str]) -> list[Method]:
    """Return the methods of the abilities with these names."""
    chosen = [each for each in ABILITIES if each.protocol.__name__ in abilities]
    names = [
        f"{each.part}.{verb}" if each.part else verb for each in chosen for verb in _verbs(each)
    ]
    return [methods()[name] for name in names]


def abilities_of(store: object) -> tuple[str, ...]:
    """The names of the abilities that a store has."""
    return tuple(
        each.protocol.__name__
        for each in ABILITIES
        if each.shown_by is None or isinstance(store, each.shown_by)
    )


@lru_cache(maxsize=1)
def version() -> str:
    """The protocol that this code speaks: its number, and a digest of every method and its types.

    Two versions of Limpet understand each other exactly if it is the same text.
    """
    shapes = [
        (
            method.name,
            method.bind.__struct_fields__,
            _shape(method.sent),
            _shape(method.answer.wire),
        )
        for _, method in sorted(methods().items())
    ]
    return f"{PROTOCOL}.{sha256(repr(shapes).encode()).hexdigest()[:8]}"


def _shape(wire: Any) -> str:
    """A type in words that do not depend on the version of Python."""
    if isinstance(wire, type) and issubclass(wire, msgspec.Struct) and get_origin(wire) is None:
        hints = get_type_hints(wire)
        fields = [_shape(hints[name]) for name in wire.__struct_fields__]
        return f"{wire.__name__}({', '.join(fields)})"
    origin, args = get_origin(wire), get_args(wire)
    if origin in (Union, UnionType):
        return " | ".join(sorted([_shape(each) for each in args]))
    if origin is Literal:
        return f"one of {args!r}"
    inside = f"[{', '.join([_shape(each) for each in args])}]" if args else ""
    return f"{getattr(origin or wire, '__name__', str(wire))}{inside}"


def _verbs(ability: Ability) -> list[str]:
    protocol = ability.protocol
    return [
        name
        for name, member in vars(protocol).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(member) and name != "close"
    ]


def _methods_of(ability: Ability) -> list[Method]:
    functions = vars(ability.protocol)
    return [_method(_named(ability, verb), functions[verb]) for verb in _verbs(ability)]


def _named(ability: Ability, verb: str) -> str:
    return f"{ability.part}.{verb}" if ability.part else verb


def _method(name: str, function: Callable[..., Any]) -> Method:
    hints = get_type_hints(function)
    given = list(inspect.signature(function).parameters.values())[1:]  # without self
    forms = [_argument(hints[each.name]) for each in given]
    fields: list[Any] = []
    for each, form in zip(given, forms, strict=True):
        default = () if each.default is inspect.Parameter.empty else (each.default,)
        fields.append((each.name, form.wire, *default))
    bind = msgspec.defstruct(f"Call_{name.replace('.', '_')}", fields, kw_only=False)
    packs = [(place, form.pack) for place, form in enumerate(forms) if form.pack is not None]
    unpacks = [(place, form.unpack) for place, form in enumerate(forms) if form.unpack is not None]
    wire: Any = tuple[tuple([form.wire for form in forms])]  # type: ignore[misc]
    answer = RESULTS if name == "commit" else form_of(hints["return"])
    callbacks = [place for place, each in enumerate(given) if hints[each.name] == Progress | None]
    return Method(
        name,
        bind,
        _converted(packs, taken=astuple),
        wire,
        msgspec.msgpack.Decoder(wire).decode,
        _converted(unpacks, taken=list),
        answer,
        msgspec.msgpack.Decoder(answer.wire).decode,
        callbacks[0] if callbacks else None,
    )


def _argument(hint: Any) -> WireForm:
    if hint == Progress | None:  # the server is told that there is one, and reports to it
        return WireForm(bool, lambda progress: progress is not None)
    if hint == Sequence[Commit]:
        return COMMITS
    return form_of(hint)


def _converted(
    places: Sequence[tuple[int, Callable[[Any], Any]]], *, taken: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    if not places:
        return taken

    def convert(value: Any) -> list[Any]:
        row = list(taken(value))
        for place, change in places:
            row[place] = change(row[place])
        return row

    return convert


def _own(name: str) -> Method:
    """A call of ours beside those of the protocols: it takes one value and answers nothing."""
    bind = msgspec.defstruct(name.lstrip("$"), [("value", Any)])
    nothing = WireForm(None)
    decode = msgspec.msgpack.Decoder(None).decode
    return Method(name, bind, lambda of: of.value, Any, decode, list, nothing, decode)


SUBSCRIBE: Final = _own("$subscribe")
