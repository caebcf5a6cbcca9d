"""limpet.providers on the official clients, against servers that speak the providers' wires."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from google import genai

from limpet import providers
from limpet.runtime.model_call import ModelRequest, Piece
from limpet.runtime.tool import tool
from tests.support.provider_server import Provider, Said, serving

SHAPES = ("openai", "openai-responses", "anthropic", "gemini")


@tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"rain in {city}"


@asynccontextmanager
async def model_of(shape: str, url: str) -> AsyncIterator[providers.Model]:
    """A model on that server, by the provider's own asynchronous client."""
    key: Any = {"api_key": "k", "max_retries": 0}
    if shape == "gemini":
        with genai.Client(api_key="k", http_options={"base_url": url}) as client:
            async with client.aio:
                yield providers.gemini(client, "m")
    elif shape == "anthropic":
        async with anthropic.AsyncAnthropic(base_url=url, **key) as client:
            yield providers.anthropic(client, "m")
    else:
        make = providers.openai if shape == "openai" else providers.openai_responses
        async with openai.AsyncOpenAI(base_url=url, **key) as client:
            yield make(client, "m")


HELLO: dict[str, list[dict[str, Any]]] = {
    "openai": [{"role": "user", "content": "hi"}],
    "openai-responses": [{"role": "user", "content": "hi"}],
    "anthropic": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "gemini": [{"role": "user", "parts": [{"text": "hi"}]}],
}


def request_of(shape: Any) -> ModelRequest:
    return ModelRequest("Be kind.", HELLO[shape], (weather,), shape)


async def pieces_of(model: providers.Model, shape: str) -> list[Piece]:
    return [piece async for piece in model(request_of(shape))]


def told_tools(shape: str, provider: Provider) -> tuple[str, Any]:
    """The name and the schema of the tool in the request, as this API has them."""
    body = provider.bodies[0]
    if shape == "gemini":
        (declared,) = body["tools"][0]["functionDeclarations"]
        return declared["name"], declared["parameters_json_schema"]
    (declared,) = body["tools"]
    if shape == "openai":
        declared = declared["function"]
    return declared["name"], declared.get("parameters") or declared.get("input_schema")


@pytest.mark.parametrize("shape", SHAPES)
async def test_text_calls_usage_and_reasoning_arrive_in_pieces(shape: str) -> None:
    """Each wire yields the same pieces, and the request names the tools."""
    calls = (("call_1", "weather", ('{"city": ', '"Kyiv"}')), ("call_2", "weather", ("{}",)))
    said = Said(("It ", "is"), calls, given=30, said=7, cached=20, thinking="hm")
    with serving(said) as provider:
        async with model_of(shape, provider.url) as model:
            pieces = await pieces_of(model, shape)
    assert provider.wrong == []
    assert (model.shape, model.name) == (shape, "m")
    assert [piece.text for piece in pieces if piece.text] == ["It ", "is"]
    assert "".join(piece.reasoning or "" for piece in pieces) == "hm"
    assert [piece.usage for piece in pieces if piece.usage][-1] == {
        "input": 30,
        "output": 7,
        "cache_read": 20,
    }
    assert [piece.stop for piece in pieces if piece.stop] != []
    found: dict[int, dict[str, str]] = {}
    for piece in pieces:
        if piece.tool is not None:
            call = found.setdefault(piece.tool["index"], {"arguments": ""})
            call |= {n: v for n in ("id", "name") if (v := piece.tool[n]) is not None}
            call["arguments"] += piece.tool["arguments"]
    assert [(c["id"], c["name"]) for c in found.values()] == [
        ("call_1", "weather"),
        ("call_2", "weather"),
    ]
    assert [c["arguments"].replace(" ", "") for c in found.values()] == ['{"city":"Kyiv"}', "{}"]
    name, schema = told_tools(shape, provider)
    assert name == "weather"
    assert schema["properties"] == {"city": {"type": "string"}}


async def test_synchronous_clients_work_too() -> None:
    """They are used from threads, so that the loop goes on."""
    with serving(Said(("one", "two")), Said(("three",))) as provider:
        with openai.OpenAI(base_url=provider.url, api_key="k") as client:
            pieces = await pieces_of(providers.openai(client, "m"), "openai")
        with anthropic.Anthropic(base_url=provider.url, api_key="k") as other:
            pieces += await pieces_of(providers.anthropic(other, "m"), "anthropic")
    assert [p.text for p in pieces if p.text] == ["one", "two", "three"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_reply_that_breaks_off_is_an_error(shape: str) -> None:
    """Half a reply is never taken for a whole one."""
    with serving(Said(("one ", "two ", "three ", "four"), cut=True)) as provider:
        async with model_of(shape, provider.url) as model:
            with pytest.raises(Exception) as caught:  # noqa: PT011  # each client has its own
                await pieces_of(model, shape)
    assert not isinstance(caught.value, AssertionError)
