"""session.messages() on what google-adk recorded: the conversation, without google-adk's help."""

from __future__ import annotations

from base64 import b64decode

from google.genai import types

import limpet
from limpet.adapters.adk import LimpetSessionService
from tests.adapters.adk.agents import ask, runner
from tests.adapters.adk.saying import answered, called, said

ADA = {"app_name": "support", "user_id": "ada"}


def texts(found: list[limpet.Message]) -> list[str]:
    return [part["text"] for message in found for part in message.parts if part["type"] == "text"]


async def test_turns_of_a_real_agent_read_as_a_conversation(url: str) -> None:
    """Who said what, which tool was called with what, and what it answered, turn by turn."""
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp)
        await service.create_session(**ADA, session_id="s")
        run = runner(service)
        for text in ("add 2", "hi", "add 3"):
            await ask(run, text)
        found = await lp.session("support", "ada", "s").messages()
        adding = ["user", "assistant", "tool", "assistant"]
        assert [message.role for message in found] == [*adding, "user", "assistant", *adding]
        use, result = found[1].parts[0], found[2].parts[0]
        assert (use["name"], use["input"]) == ("add", {"number": 2})
        assert (result["request_id"], result["output"]) == (use["request_id"], {"total": 2})
        assert texts(found)[-2:] == ["add 3", "the total is 5"]
        assert not any(message.synthetic for message in found)


async def test_what_was_rewound_is_not_said(url: str) -> None:
    """A rewind takes the invocations after it out of the conversation; the log keeps them."""
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp)
        await service.create_session(**ADA, session_id="s")
        run = runner(service)
        for text in ("one", "two"):
            await ask(run, text)
        session = await service.get_session(**ADA, session_id="s")
        assert session is not None
        target = session.events[2].invocation_id
        await run.rewind_async(user_id="ada", session_id="s", rewind_before_invocation_id=target)
        assert texts(await lp.session("support", "ada", "s").messages()) == ["one", "1 messages"]
        await ask(run, "three")
        found = texts(await lp.session("support", "ada", "s").messages())
        # The scripted model counts what ADK itself shows it: the same conversation.
        assert found == ["one", "1 messages", "three", "3 messages"]


async def test_parts_have_their_bytes_and_a_call_its_outcome(url: str) -> None:
    """Text, a picture, a file by its address, thoughts left out, several calls, a failed one."""
    picture = bytes(range(256))
    inline = types.Part(inline_data=types.Blob(mime_type="image/png", data=picture))
    file = types.FileData(mime_type="application/pdf", file_uri="https://x.example/a.pdf")
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp)
        session = await service.create_session(**ADA, session_id="s")
        asked = ("look", inline, types.Part(file_data=file))
        await service.append_event(session, said(*asked, author="user"))
        thought = types.Part(text="hm", thought=True)
        calls = (called("f", "c1", x=1), called("g", "c2"), called("h", "c3"))
        await service.append_event(session, said(thought, "I see", *calls))
        answers = (answered("f", "c1", y=2), answered("g", "c2", error="no"))
        await service.append_event(session, said(*answers))
        await service.append_event(session, said("done"))
        found = await lp.session("support", "ada", "s").messages()
        assert [message.role for message in found] == [
            *("user", "assistant", "assistant", "assistant", "assistant"),
            *("tool", "tool", "tool", "assistant"),
        ]
        text, image, paper = found[0].parts
        assert text == {"type": "text", "text": "look"}
        assert (image["type"], image["media_type"]) == ("image", "image/png")
        assert b64decode(image["data"], validate=True) == picture
        paper_kept = {"type": "file", "media_type": "application/pdf"}
        assert paper == {**paper_kept, "url": "https://x.example/a.pdf"}
        assert texts(found) == ["look", "I see", "done"]
        outcomes = [message.parts[0] for message in found[5:8]]
        assert [part["is_error"] for part in outcomes] == [False, True, True]
        assert [message.synthetic for message in found[5:8]] == [False, False, True]
