"""Whatever is sent, the server answers with the right error and keeps serving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import ConnectionClosed
from world import Counter, LineWorld, Served, serving

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(["reset", "step", "state", "mcp", "list_tools", "observation", ""])
FRAMES = st.fixed_dictionaries({}, optional={"type": TYPES | JSON, "data": JSON, "extra": JSON})
OPEN_CODES = {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(Counter) as running:
        yield running


async def _exchange(url: str, frames: list[str | bytes]) -> list[dict[str, Any]]:
    """Send these on one socket; then prove that the session still works."""
    async with websocket(url, max_size=None) as line:
        replies = []
        for frame in [*frames, '{"type":"reset","data":{"goal":1}}', '{"type":"state"}']:
            await line.send(frame)
            replies.append(from_json(await asyncio.wait_for(line.recv(), 10)))
        return replies


def exchange(served: Served, *frames: str | bytes) -> list[dict[str, Any]]:
    replies = asyncio.run(_exchange(served.ws, list(frames)))
    assert replies[-2]["data"]["observation"]["text"] == "Reach 1."
    assert replies[-1]["type"] == "state"
    return replies[:-2]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(FRAMES, min_size=1, max_size=5))
def test_any_json_gets_one_answer_and_the_socket_stays_open(
    served: Served, frames: list[Any]
) -> None:
    for frame, reply in zip(
        frames, exchange(served, *(json.dumps(frame) for frame in frames)), strict=True
    ):
        assert set(reply) == {"type", "data"}
        if reply["type"] == "error":
            assert reply["data"]["code"] in OPEN_CODES and reply["data"]["message"]
        else:
            assert isinstance(frame, dict) and reply["type"] in ("observation", "state", "mcp")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text() | st.binary())
def test_any_text_or_bytes_gets_an_error(served: Served, noise: str | bytes) -> None:
    (reply,) = exchange(served, noise)
    assert reply["type"] == "error" and reply["data"]["code"] in OPEN_CODES


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("[" * 200_000, "INVALID_JSON"),
        ('{"type":"reset","data":' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}", "INVALID_JSON"),
        ('{"type":"fly"}', "UNKNOWN_TYPE"),
        ("{}", "UNKNOWN_TYPE"),
        ("[1, 2]", "VALIDATION_ERROR"),
        ('"reset"', "VALIDATION_ERROR"),
        ('{"type":"step"}', "VALIDATION_ERROR"),
        ('{"type":"step","data":[1]}', "VALIDATION_ERROR"),
        ('{"type":"state","session":"x"}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"number":"many"}}', "VALIDATION_ERROR"),
        ('{"type":"reset","data":{"gaol":1}}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"number":1}}', "EXECUTION_ERROR"),
    ],
)
def test_a_bad_frame_gets_its_own_code(served: Served, frame: str, code: str) -> None:
    (reply,) = exchange(served, frame)
    assert reply["type"] == "error" and reply["data"]["code"] == code
    assert ("errors" in reply["data"]) == (code == "VALIDATION_ERROR")


def test_a_large_frame_within_the_limit_is_read(served: Served) -> None:
    blob = json.dumps({"type": "step", "data": {"number": "9" * 3_000_000}})
    (reply,) = exchange(served, blob)
    assert reply["data"]["code"] == "VALIDATION_ERROR"


def test_a_frame_over_the_limit_closes_its_socket_with_1009_and_nobody_elses() -> None:
    async def send_too_much(url: str) -> None:
        async with websocket(url) as bystander, websocket(url, max_size=None) as line:
            await bystander.send('{"type":"reset","data":{"start":1}}')
            await bystander.recv()
            with pytest.raises(ConnectionClosed) as closed:
                await line.send('{"type":"reset","data":{"x":"' + "y" * 50_000 + '"}}')
                await line.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
            await bystander.send('{"type":"step","data":{"steps":2}}')
            assert from_json(await bystander.recv())["data"]["observation"]["position"] == 3

    with serving(LineWorld, max_frame=20_000) as served:
        asyncio.run(send_too_much(served.ws))


def test_a_socket_that_talks_no_http_is_hung_up_on(served: Served) -> None:
    async def babble(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x00" + b"\xff" * 500)
        reply = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return reply

    assert b"400" in asyncio.run(babble(int(served.url.rpartition(":")[2])))
    exchange(served)
