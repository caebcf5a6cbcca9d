"""The support agent in a browser: `pip install starlette uvicorn`, then `python support_web.py`."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Route
from support_agent import agent

import limpet

PAGE = Path(__file__).with_name("support.html")


@asynccontextmanager
async def lifespan(app: Starlette):
    async with limpet.open(app.state.url) as lp:
        app.state.lp, worker = lp, limpet.Worker(lp, agent, app="support", signals=False)
        await lp.get_or_create("support", "ada", id="chat", actor="user:ada")
        working = asyncio.create_task(worker.run())
        yield
        worker.stop()
        await working


async def events(request: Request) -> StreamingResponse:
    """Every event once, from Last-Event-ID on: only recorded events have an id."""
    session = await request.app.state.lp.get("support", "ada", "chat")
    after = int(request.headers.get("last-event-id", 0))

    async def lines():
        async for event in session.follow(after=after, types=["user.*", "agent.*"]):
            seen = {"id": event.id, "type": event.type, "data": event.data}
            seen |= {"partial": event.partial, "attempt": event.attempt}
            number = "" if event.partial else f"id: {event.seq}\n"
            yield f"{number}data: {json.dumps(seen)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def send(request: Request) -> JSONResponse:
    session = await request.app.state.lp.get("support", "ada", "chat")
    await session.append("user.message", await request.json(), actor="user:ada")
    return JSONResponse({})


async def confirm(request: Request) -> JSONResponse:
    session, said = await request.app.state.lp.get("support", "ada", "chat"), await request.json()
    allow, note = said.get("allow", True), said.get("note")
    await session.confirm(said["id"], allow=allow, note=note, actor="user:boss")
    return JSONResponse({})


async def page(request: Request) -> FileResponse:
    return FileResponse(PAGE)


routes = [
    Route("/", page),
    Route("/events", events),
    Route("/messages", send, methods=["POST"]),
    Route("/confirm", confirm, methods=["POST"]),
]
app = Starlette(routes=routes, lifespan=lifespan)
app.state.url = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///support.db"

if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
