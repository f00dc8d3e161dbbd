"""Web pages of other sites are kept out, by Host and by Origin; all other clients get in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from ludus_process import served_by_program
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import InvalidStatus
from world import Counter, Served, serving

from ludus.client.server_http import status_error as refused_by_server
from ludus.protocol.loopback import is_loopback
from ludus.serve.access import AccessPolicy, parse_hostname
from ludus.serve.config import ServeConfig, add_names, is_valid_origin

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
STEP = {"action": {"number": 1}}
MISDIRECTED, FORBIDDEN, UNSUPPORTED = 421, 403, 415


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(Counter) as running:
        yield running


def statuses(url: str, headers: dict[str, str]) -> set[int]:
    """What every kind of HTTP request gets with these headers."""
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        return {
            http.get("/health").status_code,
            http.get("/schema").status_code,
            http.get("/state").status_code,
            http.get("/metrics").status_code,
            http.post("/reset").status_code,
            http.post("/step", json=STEP).status_code,
            http.post("/mcp", json=CALL).status_code,
        }


async def upgrade_status(served: Served, path: str, headers: dict[str, str]) -> int:
    """What an upgrade gets: 101, or the status of the refusal."""
    port = int(served.url.rpartition(":")[2])
    # The address in the URL makes the Host header; the connection goes to the server.
    url = f"ws://{headers.get('Host', f'127.0.0.1:{port}')}{path}"
    others = {name: value for name, value in headers.items() if name != "Host"}
    try:
        async with websocket(
            url, additional_headers=others, proxy=None, host="127.0.0.1", port=port
        ):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


PAGES = [
    ({"Origin": "https://evil.example"}, FORBIDDEN),
    ({"Origin": "null"}, FORBIDDEN),
    ({"Origin": "http://127.0.0.1:1"}, FORBIDDEN),
    ({"Host": "evil.example"}, MISDIRECTED),
    ({"Host": "evil.example", "Origin": "http://evil.example"}, MISDIRECTED),
    ({"Host": "127.0.0.1.evil.example:8000"}, MISDIRECTED),
    ({"Host": "10.0.0.1"}, MISDIRECTED),
    ({"Host": "0.0.0.0", "Origin": "https://evil.example"}, FORBIDDEN),
]


@pytest.mark.parametrize(("headers", "status"), PAGES)
async def test_requests_of_other_sites_are_refused_on_every_route(
    served: Served, headers: dict[str, str], status: int
) -> None:
    assert statuses(served.url, headers) == {status}
    for path in ("/ws", "/mcp"):
        assert await upgrade_status(served, path, headers) == status
    assert len(served.sessions) == 0


@pytest.mark.parametrize(
    "host", ["localhost:9000", "127.0.0.1", "[::1]:80", "LOCALHOST", "0.0.0.0"]
)
async def test_loopback_names_are_answered_on_any_port(served: Served, host: str) -> None:
    assert statuses(served.url, {"Host": host}) == {200}
    assert await upgrade_status(served, "/ws", {"Host": host}) == 101


async def test_a_page_of_the_server_itself_may_use_it(served: Served) -> None:
    own = {"Origin": served.url}
    assert statuses(served.url, own) == {200}
    for path in ("/ws", "/mcp"):
        assert await upgrade_status(served, path, own) == 101


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/x-www-form-urlencoded", UNSUPPORTED),
        ("multipart/form-data; boundary=x", UNSUPPORTED),
        ("text/plain", UNSUPPORTED),
        ("text/plain;charset=UTF-8", UNSUPPORTED),
        ("application/json; charset=utf-8", 200),
    ],
)
def test_forms_and_plain_text_are_not_taken(served: Served, kind: str, status: int) -> None:
    for path, body in (("/step", b'{"action":{"number":1}}'), ("/mcp", b"{}"), ("/reset", b"{}")):
        reply = httpx.post(
            served.url + path, content=body, headers={"Content-Type": kind}, trust_env=False
        )
        assert reply.status_code == status


def test_images_of_other_sites_build_no_environment_but_links_are_followed(
    served: Served,
) -> None:
    def get(site: str, destination: str) -> int:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": destination}
        return httpx.get(f"{served.url}/state", headers=headers, trust_env=False).status_code

    assert get("cross-site", "image") == FORBIDDEN
    assert get("same-site", "iframe") == FORBIDDEN
    assert get("cross-site", "document") == get("same-origin", "empty") == get("none", "image")
    assert get("none", "document") == 200


async def test_origins_that_are_allowed_may_post_and_upgrade() -> None:
    page = "https://play.example"
    with serving(Counter, allow_origins=(page,), token="secret") as served:
        headers = {"Origin": page, "Authorization": "Bearer secret"}
        assert statuses(served.url, headers) == {200}
        assert await upgrade_status(served, "/ws", headers) == 101
        assert await upgrade_status(served, "/ws", {"Origin": page}) == 401
        other = headers | {"Origin": "https://play.example.evil"}
        assert statuses(served.url, other) == {FORBIDDEN}
        ask = {"Access-Control-Request-Method": "POST", "Origin": page}
        async with httpx.AsyncClient(trust_env=False) as http:
            preflight = await http.options(f"{served.url}/step", headers=ask)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == page


async def test_hosts_that_are_allowed_are_answered() -> None:
    with serving(Counter, allow_hosts=("env.example", "*.lab.example")) as served:
        for host in ("env.example", "env.example:443", "a.lab.example", "localhost"):
            assert statuses(served.url, {"Host": host}) == {200}
            assert await upgrade_status(served, "/ws", {"Host": host}) == 101
        for host in ("lab.example", "notlab.example", "other.example"):
            assert statuses(served.url, {"Host": host}) == {MISDIRECTED}


def refused(settings: ServeConfig, **headers: str) -> int | None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "websocket", "path": "/ws", "headers": pairs}
    refusal = AccessPolicy(settings).check(scope)
    return None if refusal is None else refusal.status


def test_a_server_bound_elsewhere_answers_to_any_host_unless_hosts_are_given() -> None:
    public = ServeConfig(host="0.0.0.0")
    assert refused(public, host="env.example") is None
    assert refused(public, host="env.example", origin="https://env.example") is None
    assert refused(public, host="env.example", origin="https://evil.example") == FORBIDDEN
    named = ServeConfig(host="0.0.0.0", allow_hosts=("env.example",))
    assert refused(named, host="env.example") is None
    assert refused(named, host="localhost:8000") is None
    assert refused(named, host="10.0.0.1") == MISDIRECTED
    anybody = ServeConfig(allow_hosts=("*",), allow_origins=("*",))
    assert refused(anybody, host="x.example", origin="https://y.example") is None


def test_what_names_a_host_and_an_origin() -> None:
    assert [parse_hostname(text) for text in ("A.b:1", "[::1]:80", "::1", "a.b.", "a")] == [
        *("a.b", "::1", "::1", "a.b", "a")
    ]
    for names in ("a.b, *.c d", ["a.b", "*.c,d"]):
        assert add_names(names, variable="NOT_SET") == ("a.b", "*.c", "d")
    assert add_names(None, variable="NOT_SET") == add_names("", variable="NOT_SET") == ()
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "localhost.evil.example", "")))
    assert all(
        map(is_valid_origin, ("https://a.b", "http://a:80", "null", "*", "chrome-extension://x"))
    )
    assert not any(map(is_valid_origin, ("a.b", "https://a.b/", "https://a.b/c", "https://", "")))


def test_our_client_says_that_the_host_name_is_not_answered() -> None:
    assert "`allow_hosts`" in str(refused_by_server("http://env.example", MISDIRECTED))


async def test_refused_upgrades_and_cut_connections_leave_nothing_in_the_log() -> None:
    options = ("--max-sessions", "1", "--queue-timeout", "0.02", "--token", "secret")
    known = {"Authorization": "Bearer secret"}
    with served_by_program("echo", *options) as program:
        paths = (program.ws, program.ws.removesuffix("/ws") + "/mcp")
        for url in paths:
            with pytest.raises(InvalidStatus):
                await websocket(url)
        async with websocket(program.ws, additional_headers=known) as holder:
            await holder.send('{"type":"reset"}')
            await holder.recv()
            for number in range(12):
                # Gone before, while, or after it is told that there is no session for it.
                for url in paths:
                    line = await websocket(url, additional_headers=known)
                    await asyncio.sleep(number * 0.004)
                    line.transport.abort()
        program.process.terminate()
        said, _ = program.process.communicate(timeout=60)
    for noise in ("handshake", "never retrieved", "Traceback", "ERROR"):
        assert noise not in said
