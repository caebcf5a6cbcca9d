"""LimpetTaskStore: tasks of the Agent2Agent protocol in a Limpet.

A task is one session of its owner. What has changed since it was saved before is recorded, so a
growing history is stored once and every state of the task can be read again (`session.history.at`).
New messages of its history are messages of the session, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from limpet import Key, Limpet, diff, ops
from limpet.adapters.shared_store import release_store, store_for
from limpet.adapters.transcript import Statement, Transcript, TranscriptRecord, label_of
from limpet.errors import ExtraMissing
from limpet.model import thaw
from limpet.store.pages import each_page

try:
    from a2a.server.context import ServerCallContext
    from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
    from a2a.server.tasks.task_store import TaskStore
    from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse, Task
    from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
    from a2a.utils.errors import InvalidParamsError
    from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
    from google.protobuf.json_format import MessageToDict, ParseDict
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("a2a", "google"):
        raise
    raise ExtraMissing("a2a-sdk", "a2a") from error

Tasks: TypeAlias = list[Task]  # within the class, `list` is the method

_MEMBER: Final = "a2a"
_SAVED: Final = "a2a.saved"  # says nothing that our vocabulary has a word for
_TASK: Final = "task"  # the name in state
_CONTEXT: Final = "context"  # the label
_NOBODY: Final = "anonymous"  # the owner of tasks whose caller has no name
_OPS_MAX: Final = 500  # beyond, the whole is written


class LimpetTaskStore(TaskStore):  # type: ignore[misc]  # without the package its base is Any
    """A TaskStore of the A2A SDK.

    `store` is a URL, opened at the first use and shared with all objects of that URL in this
    process; or an open Limpet. A task is the session `Key(app, owner, task.id)`; the owner is that
    of the call's context, so nobody reads the tasks of another.
    """

    def __init__(
        self,
        store: str | Limpet,
        *,
        app: str = "a2a",
        owner_resolver: OwnerResolver = resolve_user_scope,
    ) -> None:
        self._app, self._owner_of = app, owner_resolver
        self._store = store_for(self, store)

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task as it is now: one commit of what has changed, durable when it returns."""
        key, value = self._key(task.id, context), MessageToDict(task)
        labels = {_CONTEXT: label_of(task.context_id) if task.context_id else None}
        await self._store.run(lambda lp: _save(lp, key, labels, value))

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the caller, or None."""
        key = self._key(task_id, context)
        session = await self._store.run(lambda lp: lp.find(key, tail=0))
        return None if session is None else _task_in(session.state)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, those with the newest status first."""
        owner = self._owner(context)
        tasks = await self._store.run(lambda lp: self._tasks(lp, owner, params))
        tasks.sort(key=_order, reverse=True)
        page_size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        rest = tasks
        if params.page_token:
            cursor = decode_list_tasks_cursor(params.page_token)
            if cursor is None:
                raise InvalidParamsError(f"Invalid page token: {params.page_token}")
            rest = [task for task in tasks if _order(task) < cursor.sort_key()]
        page = rest[:page_size]
        following = encode_list_tasks_cursor(_cursor(page[-1])) if len(rest) > page_size else None
        return ListTasksResponse(
            next_page_token=following, tasks=page, total_size=len(tasks), page_size=page_size
        )

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the caller, if there is one. A late save is refused."""
        key = self._key(task_id, context)
        await self._store.run(lambda lp: lp.delete(key))

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other objects of this process use it."""
        await release_store(self, self._store)

    # --- private --------------------------------------------------------------------------------

    def _owner(self, context: ServerCallContext) -> str:
        return self._owner_of(context) or _NOBODY

    def _key(self, task_id: str, context: ServerCallContext) -> Key:
        return Key(self._app, self._owner(context), task_id)

    async def _tasks(self, lp: Limpet, owner: str, params: ListTasksRequest) -> Tasks:
        labels = {_CONTEXT: label_of(params.context_id)} if params.context_id else None
        tasks = [task async for task in _listed(lp, self._app, owner, labels)]
        if params.status:
            tasks = [task for task in tasks if task.status.state == params.status]
        if params.HasField("status_timestamp_after"):
            since = params.status_timestamp_after.ToNanoseconds()
            tasks = [task for task in tasks if _order(task)[0] and _order(task)[1] >= since]
        return tasks


async def _save(
    lp: Limpet, key: Key, labels: Mapping[str, str | None], task: Mapping[str, Any]
) -> None:
    def change(state: Mapping[str, Any], _: Sequence[TranscriptRecord]) -> Sequence[ops.PlainOp]:
        before = {_TASK: state[_TASK]} if _TASK in state else {}
        changes = diff(before, {_TASK: task}).ops()
        return changes if len(changes) <= _OPS_MAX else (ops.Set((_TASK,), task),)

    # A message is recorded once, by its id; the task itself is in the state.
    said = [
        TranscriptRecord({}, list(_statements(message)), message["messageId"])
        for message in task.get("history", ())
        if message.get("messageId")
    ]
    transcript = Transcript(lp, key, member=_MEMBER, labels=labels)
    await transcript.append(said, change=change, type=_SAVED)


async def _listed(
    lp: Limpet, app: str, owner: str, labels: Mapping[str, str] | None
) -> AsyncIterator[Task]:
    async for page in each_page(
        lambda at: lp.list(app=app, user=owner, labels=labels, state=True, limit=500, cursor=at)
    ):
        for head in page.items:
            task = _task_in(page.states.get(head.key, {}))
            if task is not None:
                yield task


def _task_in(state: Mapping[str, Any]) -> Task | None:
    value = state.get(_TASK)
    return None if value is None else ParseDict(thaw(value), Task(), ignore_unknown_fields=True)


def _order(task: Task) -> tuple[bool, int, str]:
    """The order in which the protocol lists tasks: by the time of their status, then their id."""
    timed = task.HasField("status") and task.status.HasField("timestamp")
    return timed, task.status.timestamp.ToNanoseconds() if timed else 0, task.id


def _cursor(task: Task) -> ListTasksCursor:
    timed, timestamp_ns, id = _order(task)
    return ListTasksCursor(timestamp_ns=timestamp_ns if timed else None, task_id=id)


def _statements(message: Mapping[str, Any]) -> Iterator[Statement]:
    type = "agent.message" if message.get("role") == "ROLE_AGENT" else "user.message"
    texts = [part["text"] for part in message.get("parts", ()) if part.get("text")]
    if texts:
        yield type, {"text": "\n".join(texts)}
