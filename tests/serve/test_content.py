"""Pictures and odd numbers on every way out of the server."""

from __future__ import annotations

import base64

import httpx
from world import serving

from ludus import Image, Observation, Text, ToolEnvironment, connect, tool
from ludus.client.session import RemoteSession


class Scene(Observation):
    text: str = "Here."
    distance: float = 0.0


class Camera(ToolEnvironment):
    """Shows pictures."""

    def reset(self, *, seed: int | None = None) -> list[Text | Image]:
        return [Text(text="Look:"), Image.from_bytes(b"first")]

    @tool
    def look(self) -> list[Text | Image]:
        """Take a picture."""
        return [Text(text="Seen:"), Image.from_bytes(b"second", "image/jpeg")]


class Gauge(ToolEnvironment):
    """Measures what cannot be measured."""

    def reset(self, *, seed: int | None = None) -> str:
        return "Ready."

    @tool
    def measure(self) -> Scene:
        """Measure the distance."""
        return Scene(distance=float("inf"))


async def test_pictures_cross_the_socket() -> None:
    with serving(Camera) as served:
        async with connect(served.url).session() as session:
            assert isinstance(session, RemoteSession)
            shown = [(await session.reset()).content, (await session.call("look")).content]
        pictures = [block for content in shown for block in content if isinstance(block, Image)]
        assert [base64.b64decode(picture.data) for picture in pictures] == [b"first", b"second"]
        assert [picture.mime_type for picture in pictures] == ["image/png", "image/jpeg"]


def test_pictures_are_content_blocks_over_mcp() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}}
    with serving(Camera) as served:
        reply = httpx.post(f"{served.url}/mcp", json=call, trust_env=False).json()
    words, picture = reply["result"]["content"]
    assert words == {"type": "text", "text": "Seen:"}
    assert (picture["type"], picture["mimeType"]) == ("image", "image/jpeg")


async def test_a_number_that_json_does_not_have_is_null_everywhere() -> None:
    with serving(Gauge) as served:
        async with httpx.AsyncClient(trust_env=False) as http:
            reply = await http.post(f"{served.url}/step", json={"action": {}})
        assert reply.json()["observation"]["distance"] is None
        async with connect(served.url).session() as session:
            await session.reset()
            assert (await session.step({})).observation["distance"] is None
