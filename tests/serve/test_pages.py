"""The pages of a server, without a browser: what is public, and how a page sends its token."""

from __future__ import annotations

import base64
import re

import httpx
import pytest
from ludus_process import served_by_program
from pydantic_core import from_json, to_json
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol
from world import Counter, LineWorld, Two, serving

from ludus.web import list_files


def offered(token: str) -> list[Subprotocol]:
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return [Subprotocol("ludus"), Subprotocol(f"ludus.token.{encoded}")]


def test_pages_and_assets_need_no_token_and_everything_else_does() -> None:
    with serving(Counter, token="secret") as served, httpx.Client(base_url=served.url) as http:
        public = ["/", "/web", "/docs", *(f"/{name}" for name in list_files() if "assets" in name)]
        assert {http.get(path).status_code for path in public} == {200}
        private = ["/interface", "/openapi.json", "/metadata", "/state", "/assets/", "/play.html"]
        assert {http.get(path).status_code for path in private} == {401}
        assert http.post("/").status_code in (401, 405)
        assert "Add numbers" not in http.get("/").text


def test_every_file_that_a_page_names_is_served() -> None:
    with serving(Counter) as served, httpx.Client(base_url=served.url) as http:
        for page in ("/", "/web", "/docs"):
            names = re.findall(r'(?:src|href)="(\./[^"]+)"', http.get(page).text)
            assert len(names) >= 3
            assert {http.get(name.removeprefix(".")).status_code for name in names} == {200}


def test_an_unchanged_file_is_not_sent_again() -> None:
    with serving(Counter) as served, httpx.Client(base_url=served.url) as http:
        first = http.get("/assets/play.js")
        again = http.get("/assets/play.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert http.get("/assets/play.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_interface_tells_tools_and_task_arguments() -> None:
    with serving(Two) as served:
        told = httpx.get(f"{served.url}/interface").json()
    assert [each["name"] for each in told["tools"]] == ["double", "leave"]
    assert told["calls_by_name"] is True
    assert told["task_schema"]["properties"].keys() == {"seed"}
    with serving(LineWorld) as served:
        told = httpx.get(f"{served.url}/interface").json()
    assert told["calls_by_name"] is False
    assert told["tools"][0]["inputSchema"]["required"] == ["steps"]
    assert told["description"] == "A typed environment: walk to ten."


async def test_a_token_is_taken_as_a_subprotocol() -> None:
    with serving(Counter, token="geheim-ü") as served:
        async with websocket(served.ws, subprotocols=offered("geheim-ü")) as socket:
            assert socket.subprotocol == "ludus"
            await socket.send('{"type":"reset","data":{"goal":4}}')
            assert from_json(await socket.recv())["data"]["observation"]["text"] == "Reach 4."
        malformed = [Subprotocol("ludus.token.a")]
        for wrong in (offered("geheim"), offered(""), offered("geheim-ü")[:1], malformed):
            with pytest.raises(InvalidStatus) as refused:
                await websocket(served.ws, subprotocols=wrong)
            assert refused.value.response.status_code == 401
    with serving(Counter) as served:
        async with websocket(served.ws) as socket:
            assert socket.subprotocol is None


async def test_a_subprotocol_reaches_the_worker_that_has_the_session() -> None:
    options = ("--workers", "2", "--token", "secret")
    with served_by_program("echo", *options) as program:
        call = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
        async with httpx.AsyncClient(headers={"Authorization": "Bearer secret"}) as http:
            for _ in range(8):  # Both workers are asked for sessions of both.
                reply = await http.post(f"{program.url}/mcp", content=to_json(call))
                id = reply.json()["result"]["session_id"]
                url = f"{program.ws}?session_id={id}"
                async with websocket(url, subprotocols=offered("secret")) as socket:
                    assert socket.subprotocol == "ludus"
                    await socket.send('{"type":"reset"}')
                    assert from_json(await socket.recv())["type"] == "observation"


def test_only_allowed_sites_may_frame_a_page() -> None:
    framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}
    with serving(Counter) as served:
        assert httpx.get(served.url, headers=framed).status_code == 403
        policy = httpx.get(served.url).headers["content-security-policy"]
        assert policy.endswith("frame-ancestors 'self'")
    with serving(Counter, allow_origins=("https://huggingface.co",)) as served:
        reply = httpx.get(served.url, headers=framed)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        assert policy.endswith("frame-ancestors 'self' https://huggingface.co")
        assert httpx.get(f"{served.url}/state", headers=framed).status_code == 403
