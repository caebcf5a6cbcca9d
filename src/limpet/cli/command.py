"""A command is a short function that returns its result; the decorator here does everything else.

`@command(LOOK)` reads the function's signature. A parameter of one of the types below is supplied:
the open store, the session, its key, the actor, the screen. Every other parameter is an argument or
an option of the command. The decorator adds STORE, SESSION (or --app, --user and --id), --actor and
--json as the function needs them, opens the store, runs the coroutine, prints the result, and exits
with a code: 0 all is well, 1 the result is not ok, else the `exit_code` of the error.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

import limpet
from limpet.cli.logins import is_server, saved_token
from limpet.cli.options import session_key, store_url, user_name
from limpet.cli.output import safe_output
from limpet.cli.render import FOUND, CommandResult, Screen
from limpet.errors import (
    InvalidInput,
    SealBroken,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import DefaultActor
from limpet.session.provenance import Provenance
from limpet.store.open import look_at, refuse_missing
from limpet.store.remote.tls import tls_from_environment

F = TypeVar("F", bound=Callable[..., Any])

# The panels of `limpet --help`, in order.
LOOK: Final = "Look"
ACT: Final = "Act"
HISTORY: Final = "History"
LIFE: Final = "Life"
MOVE: Final = "Move"
CARE: Final = "Care"
PANELS: Final = (LOOK, ACT, HISTORY, LIFE, MOVE, CARE)


class StoreArgument(msgspec.Struct, frozen=True):
    """The store that a command names, for functions that open it themselves."""

    url: str

    @asynccontextmanager
    async def opened(
        self,
        *,
        writes: bool = True,
        creates: bool = False,
        archive: str | None = None,
        policies: Path | None = None,
        node: str | None = None,
        nodes: Sequence[str] = (),
        seal_for: str | None = None,
    ) -> AsyncIterator[limpet.Limpet]:
        """The open store: read-only without `writes`; a missing one is made with `creates`. `node`
        is its name among those that sessions move between, and `nodes` says where others are, as
        NAME=URL; `seal_for` its public key, for which calls to a server are sealed. Raises
        SealBroken if the store has another."""
        keys, keyring = _KEYS.get()
        others = _nodes(nodes)
        if is_server(self.url):
            token = _TOKEN.get() or saved_token(self.url)
            async with limpet.Limpet(
                self.url,
                token=token,
                tls=tls_from_environment(self.url),
                seal_for=seal_for,
                archive=archive,
                node=node,
                nodes=others,
            ) as served:
                yield served
            return
        if writes and not creates:
            await refuse_missing(self.url)
        if writes:
            opening = limpet.Limpet(
                self.url,
                archive=archive,
                keys=keys,
                keyring=keyring,
                node=node,
                nodes=others,
                policies=policies,
            )
        else:
            opening = await self._looked_at(archive, keys, keyring, node, others)
        async with opening as lp:
            if seal_for is not None and lp.keys.public_key.split() != seal_for.split():
                raise SealBroken(self.url, "its store has another key than the one given")
            yield lp

    async def _looked_at(
        self,
        archive: str | None,
        keys: str | None,
        keyring: str | None,
        node: str | None,
        nodes: dict[str, limpet.Limpet],
    ) -> limpet.Limpet:
        """The store to be read, with its keys if they were given."""
        named: dict[str, Any] = {"archive": archive, "node": node, "nodes": nodes}
        if keys is None:
            return limpet.Limpet(self.url, store=await look_at(self.url), **named)
        from limpet.security.binding import look_sealed

        store, seal = await look_sealed(self.url, keys, keyring)
        provenance = None if seal is None else Provenance(store, seal)
        return limpet.Limpet(self.url, store=store, provenance=provenance, **named)


def _nodes(named: Sequence[str]) -> dict[str, limpet.Limpet]:
    """The stores that NAME=URL name, each to be opened when it is needed. Raises InvalidInput."""
    others: dict[str, limpet.Limpet] = {}
    for text in named:
        name, equals, place = text.partition("=")
        if not equals or not name or not place:
            raise InvalidInput(f"--nodes is NAME=URL, as in eu-2=https://eu-2:8420, not {text!r}.")
        url = store_url(place)
        entry: dict[str, Any] = {"keys": _KEYS.get()[0]}
        if is_server(url):
            entry = {"token": saved_token(url), "tls": tls_from_environment(url)}
        others[name] = limpet.Limpet(url, **entry)
    return others


class SessionChoice(msgspec.Struct, frozen=True):
    """One session, the sessions of one app, or all of them."""

    app: str | None = None
    key: limpet.Key | None = None


class UserName(msgspec.Struct, frozen=True):
    """A user of an app, and an id where one is named."""

    app: str
    user: str
    id: str | None = None


class _Supplied(msgspec.Struct, frozen=True):
    """Marks the type of a parameter that the decorator supplies."""

    opens: str = ""  # "read", "write" or "create"
    names: str = ""  # "session", "optional", "filter", "user" or "new": what SESSION names
    is_session: bool = False
    is_actor: bool = False
    is_screen: bool = False


Reading = Annotated[limpet.Limpet, _Supplied(opens="read")]
Writing = Annotated[limpet.Limpet, _Supplied(opens="write")]
Creating = Annotated[limpet.Limpet, _Supplied(opens="create")]
Unopened = Annotated[StoreArgument, _Supplied(opens="unopened")]
SessionToRead = Annotated[
    limpet.Session[Any], _Supplied(opens="read", names="session", is_session=True)
]
SessionToWrite = Annotated[
    limpet.Session[Any],
    _Supplied(opens="write", names="session", is_session=True, is_actor=True),
]
SessionKey = Annotated[limpet.Key, _Supplied(names="session")]
MaybeKey = Annotated[limpet.Key | None, _Supplied(names="optional")]
Filter = Annotated[SessionChoice, _Supplied(names="filter")]
NewSession = Annotated[UserName, _Supplied(names="new")]
User = Annotated[UserName, _Supplied(names="user")]
Actor = Annotated[str, _Supplied(is_actor=True)]
Display = Annotated[Screen, _Supplied(is_screen=True)]

_Parameters: TypeAlias = dict[str, tuple[Any, Any]]  # by name: type and default
_NO_DEFAULT: Final = inspect.Parameter.empty
_STORE: Final = Annotated[
    str,
    typer.Argument(
        metavar="STORE", help="A file (support.db), postgresql://user@host/db or http://host."
    ),
]
# The masters and the ring that this command opens stores with.
_KEYS: ContextVar[tuple[str | None, str | None]] = ContextVar("keys", default=(None, None))
_KEYS_OPTION: Final = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="WHERE",
        envvar="LIMPET_KEYS",
        show_envvar=False,
        help="Masters: env:NAME, file:///path. Or LIMPET_KEYS.",
    ),
]
_KEYRING_OPTION: Final = Annotated[
    str | None,
    typer.Option(
        "--keyring",
        metavar="URL",
        envvar="LIMPET_KEYRING",
        show_envvar=False,
        help="Ring of wrapped keys. Default: beside the store.",
    ),
]
# The key that this command enters a server with.
_TOKEN: ContextVar[str | None] = ContextVar("token", default=None)
_TOKEN_OPTION: Final = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="KEY",
        envvar="LIMPET_TOKEN",
        show_envvar=False,
        hidden=True,  # one more line of every help page; limpet login says it
        help="The key to a server. Or LIMPET_TOKEN.",
    ),
]
_ACTOR: Final = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who acts. Default: cli:LOGIN.")
]
_JSON: Final = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
_ONLY_APP: Final = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
]


def _argument(metavar: str, help: str, *, required: bool = True) -> Any:
    kind = str if required else str | None
    return Annotated[kind, typer.Argument(metavar=metavar, help=help, show_default=False)]


def _part(option: str, metavar: str, help: str) -> Any:
    """One of the options that name a session, which still work and are not listed in --help."""
    return Annotated[str | None, typer.Option(option, metavar=metavar, help=help, hidden=True)]


_APP: Final = _part("--app", "NAME", "The app of the session.")
_USER: Final = _part("--user", "NAME", "Its user.")
_ID: Final = _part("--id", "ID", "Its id.")
_SESSION: Final[dict[str, Any]] = {
    "session": _argument("SESSION", "app/user/id, or --app, --user and --id."),
    "optional": _argument("SESSION", "app/user/id: only this one.", required=False),
    "filter": _argument("SESSION", "app/user/id: only this one.", required=False),
    "user": _argument("USER", "app/user, or --app and --user."),
    "new": _argument("SESSION", "app/user/id, or app/user for a new id."),
}
_TYPER_WORDS: Final = (  # of a type checker, and what a person reads instead
    (re.compile("Value error, "), ""),
    (re.compile("Input should be a valid integer.*"), "pass a whole number."),
    (re.compile("Input should be a valid number.*"), "pass a number."),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"pass \1 or more."),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"pass \1 or less."),
)
_NAMED_TOGETHER: Final = (
    "a session is named by --app, --user and --id together, or as app/user/id. Pass all three."
)


class Commands(TyperGroup):
    """All commands under one name, and the errors outside them: wrong usage, lost output."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        with safe_output():
            if "--json" not in given:
                return super().main(given, *rest, **extra)
            self._main_in_json(given, *rest, **extra)

    def _main_in_json(self, given: list[str], *rest: Any, **extra: Any) -> None:
        """Run the command with usage errors reported as JSON too."""
        screen = Screen(as_json=True)
        try:
            code = super().main(given, *rest, **{**extra, "standalone_mode": False})
        except Exception as error:
            if not hasattr(error, "format_message"):  # typer's own, wherever its version keeps it
                raise
            words = str(error.format_message()).rstrip(".")
            command = f"limpet {given[0]}" if given[0] in self.commands else "limpet"
            screen.error(InvalidInput(f"{words}. See {command} --help."))
            code = InvalidInput.exit_code
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by what they are for, each with the first sentence of its help."""
        width = max(map(len, self.commands))
        for panel in PANELS:
            rows = [
                (f"{name:<{width}}", each.get_short_help_str(formatter.width - width - 6))
                for name, each in self.commands.items()
                if getattr(each, "rich_help_panel", None) == panel
            ]
            with formatter.section(panel):
                formatter.write_dl(rows)


class Command(TyperCommand):
    """A command. What takes one value, or says yes or no, is accepted once: the last would win.

    Where --app, --user and --id name the session, the argument SESSION is left out.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and not (option.multiple or _is_plain_flag(option)):
                names = " or ".join([*option.opts, *option.secondary_opts])
                ctx.fail(f"{names} is given {times} times. Pass it once.")
        by_options = {option.name for option in given} & {"app_name", "user", "id_"}
        if by_options and any(each.name == "session" for each in self.params):
            ctx.meta["limpet.named_by_options"] = True
            ctx.params["session"] = None
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            words = getattr(error, "message", None)  # typer's own, wherever its version keeps it
            if isinstance(words, str) and hasattr(error, "format_message"):
                for theirs, ours in _TYPER_WORDS:
                    words = theirs.sub(ours, words)
                error.message = words  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*map(_metavar, filter(_is_argument, self.params)), "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        listed: list[Any] = self.params
        arguments = [(_metavar(each), each.help) for each in filter(_is_argument, listed)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        records = [each.get_help_record(ctx) for each in super().get_params(ctx)]
        options = [record for record in records if record and record[0].startswith("-")]
        with formatter.section("Options"):
            formatter.write_dl(options)

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        if "limpet.named_by_options" in ctx.meta:
            return [each for each in params if each.name != "session" or not each.required]
        return params


app = typer.Typer(
    name="limpet",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text, the same on a terminal and in a pipe
)


def command(panel: str, name: str | None = None) -> Callable[[F], F]:
    """Make a function a command in a panel of `limpet --help`; the module says what that means."""

    def register(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        supplied = {each: mark for each, hint in hints.items() if (mark := _mark_of(hint))}
        run = partial(_run, function, supplied)
        parameters = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for each, (kind, value) in _parameters(function, hints, supplied).items()
        ]
        main: Any = lambda **given: run(given)  # noqa: E731  # its signature is made here
        main.__signature__ = inspect.Signature(parameters)
        main.__doc__, main.__name__ = function.__doc__, function.__name__
        app.command(name, cls=Command, rich_help_panel=panel)(main)
        return function

    return register


def chosen_keys() -> tuple[str | None, str | None]:
    """The masters that --keys or LIMPET_KEYS names, and the ring."""
    return _KEYS.get()


def chosen_token() -> str | None:
    """The key that --token or LIMPET_TOKEN names."""
    return _TOKEN.get()


def acting(actor: str | None) -> str:
    """Return who acts: the one named, else whoever is logged in here or, on a server, the key's
    owner."""
    return DefaultActor(f"cli:{getpass.getuser()}") if actor is None else actor


def ask_first(screen: Screen, deed: str, otherwise: str, *, yes: bool) -> None:
    """Let a person confirm a deed; `otherwise` says what is the case if they do not. Where no
    prompt is possible, --yes has to be given."""
    if yes:
        return
    if screen.as_json or not sys.stdin.isatty():
        raise InvalidInput(f"This terminal cannot prompt. Pass --yes to {deed}.")
    if not typer.confirm(f"{deed[0].upper()}{deed[1:]}?", err=True):
        raise InvalidInput(f"{otherwise}: it was not confirmed. Answer y, or pass --yes.")


# --- private ------------------------------------------------------------------------------------


def _mark_of(hint: Any) -> _Supplied | None:
    marks = [each for each in get_args(hint)[1:] if isinstance(each, _Supplied)]
    return marks[0] if get_origin(hint) is Annotated and marks else None


def _parameters(
    function: Callable[..., Any], hints: dict[str, Any], supplied: dict[str, _Supplied]
) -> _Parameters:
    """Return a command's parameters: STORE, SESSION, the function's own, the options of all."""
    marks = supplied.values()
    own = inspect.signature(function).parameters.values()
    mine = [each for each in own if each.name not in supplied]
    names = next((mark.names for mark in marks if mark.names), "")
    made: _Parameters = {}
    if any(mark.opens for mark in marks):
        made["url"] = (_STORE, _NO_DEFAULT)
    last = names in ("optional", "filter")
    if names and not last:
        made["session"] = (_SESSION[names], _NO_DEFAULT)
    made |= {p.name: (hints[p.name], p.default) for p in mine if p.kind != p.KEYWORD_ONLY}
    if last:
        made["session"] = (_SESSION[names], None)
    made |= {p.name: (hints[p.name], p.default) for p in mine if p.kind == p.KEYWORD_ONLY}
    if names:
        made["app_name"] = (_ONLY_APP if names == "filter" else _APP, None)
        made |= {"user": (_USER, None)} | ({} if names == "user" else {"id_": (_ID, None)})
    if any(mark.is_actor for mark in marks):
        made["actor"] = (_ACTOR, None)
    made |= {"keys_": (_KEYS_OPTION, None), "keyring_": (_KEYRING_OPTION, None)}
    return made | {"token_": (_TOKEN_OPTION, None), "as_json": (_JSON, False)}


class _CommandRequest(msgspec.Struct, frozen=True):
    """The options of one run of a command, apart from the function's own arguments."""

    screen: Screen
    store: StoreArgument | None
    named: Any  # a key, a filter or a user, as the function wants it
    actor: str


def _run(
    function: Callable[..., Any], supplied: dict[str, _Supplied], given: dict[str, Any]
) -> None:
    screen = Screen(as_json=given.pop("as_json"))
    _KEYS.set((given.pop("keys_"), given.pop("keyring_")))
    _TOKEN.set(given.pop("token_"))
    result: CommandResult | None = None
    with screen.errors(), _advice(), screen.shown_warnings():
        request = _request(supplied.values(), given, screen)
        if inspect.iscoroutinefunction(function):
            result = asyncio.run(_run_async(function, supplied, given, request))
        else:
            values = {each: _value(mark, request) for each, mark in supplied.items()}
            result = function(**given, **values)
        if result is not None:
            screen.show(result)
    raise typer.Exit(0 if result is None or result.ok else FOUND)


def _request(
    marks: Collection[_Supplied], given: dict[str, Any], screen: Screen
) -> _CommandRequest:
    """Take what was asked for out of `given`, which keeps the function's own arguments."""
    store, named, actor = None, None, None
    if any(mark.opens for mark in marks):
        store = StoreArgument(store_url(given.pop("url")))
    for names in [mark.names for mark in marks if mark.names]:
        parts = [given.pop(each, None) for each in ("session", "app_name", "user", "id_")]
        named = _named(names, *parts)
    if any(mark.is_actor for mark in marks):
        actor = given.pop("actor")
    return _CommandRequest(screen, store, named, acting(actor))


async def _run_async(
    function: Callable[..., Any],
    supplied: dict[str, _Supplied],
    given: dict[str, Any],
    request: _CommandRequest,
) -> CommandResult | None:
    async with AsyncExitStack() as stack:
        values = {each: _value(mark, request) for each, mark in supplied.items()}
        for name, mark in supplied.items():
            if mark.opens in ("", "unopened"):
                continue
            assert request.store is not None
            writes, creates = mark.opens != "read", mark.opens == "create"
            opening = request.store.opened(writes=writes, creates=creates)
            values[name] = lp = await stack.enter_async_context(opening)
            if mark.is_session:
                actor = request.actor if writes else None
                values[name] = await lp.get(request.named, tail=0, actor=actor)
        result: CommandResult | None = await function(**given, **values)
        return result


def _value(mark: _Supplied, request: _CommandRequest) -> Any:
    """Return the value of a parameter that is known before the store is open."""
    if mark.is_screen:
        return request.screen
    if mark.opens:
        return request.store
    return request.named if mark.names else request.actor


def _named(
    names: str, session: str | None, app_name: str | None, user: str | None, id_: str | None
) -> Any:
    """Return the session that SESSION or the options beside it name. Raises InvalidInput."""
    if names == "user":
        if session is None and (app_name is None or user is None):
            raise InvalidInput("a user is named by --app and --user together, or as app/user.")
        if session is None:
            return UserName(str(app_name), str(user))
        return UserName(*user_name(session))
    if names == "new":
        if session is None and (app_name is None or user is None):
            raise InvalidInput("a session is named by --app and --user, or as app/user/id.")
        if session is None:
            return UserName(str(app_name), str(user), id_)
        if session.count("/") == 1:
            return UserName(*user_name(session))
        key = session_key(session)
        return UserName(key.app, key.user, key.id)
    if names == "filter" and session is None and user is None and id_ is None:
        return SessionChoice(app_name)
    if names == "optional" and (session, app_name, user, id_) == (None, None, None, None):
        return None
    if session is not None and (app_name, user, id_) != (None, None, None):
        raise InvalidInput("a session is named once: as app/user/id, or by --app, --user and --id.")
    if session is not None:
        key = session_key(session)
    elif app_name is None or user is None or id_ is None:
        raise InvalidInput(_NAMED_TOGETHER)
    else:
        key = limpet.Key(app_name, user, id_)
    return SessionChoice(key=key) if names == "filter" else key


@contextmanager
def _advice() -> Iterator[None]:
    """Give command-line advice for a session that does not exist."""
    try:
        yield
    except SessionNotFound as error:
        if not isinstance(error.key, limpet.Key):  # it has its own
            raise
        advice = "Check its name: limpet list STORE shows the sessions"
        raise SessionNotFound(error.key, advice) from error
    except (SessionDeleted, SessionErased) as error:
        raise type(error)(error.key, "Its events can no longer be read") from error


def _is_argument(param: Any) -> bool:
    return str(param.param_type_name) == "argument"


def _metavar(argument: Any) -> str:
    """STORE, or [SESSION] if it may be left out."""
    return f"[{argument.metavar}]" if not argument.required else str(argument.metavar)


def _is_plain_flag(option: Any) -> bool:
    """True if it can only say one thing, however often."""
    return bool(option.is_flag and not option.secondary_opts)
