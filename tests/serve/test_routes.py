"""The HTTP routes, MCP over HTTP and socket, metrics, and the token."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic_core import from_json, to_json
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import InvalidStatus
from world import Counter, LineWorld, Slow, Two, serving, until

from ludus import Action, EnvClient, Observation, connect
from ludus.check import run_checks
from ludus.client.session import Session
from ludus.errors import ConnectFailed


def client(url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, **options)


def rpc(method: str, id: int | None = 1, **params: Any) -> dict[str, Any]:
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return request if id is None else request | {"id": id}


async def test_a_server_describes_itself() -> None:
    with serving(Counter) as served:
        async with client(served.url) as http:
            assert (await http.get("/health")).json() == {"status": "healthy"}
            told = (await http.get("/metadata")).json()
            assert told["description"] == Counter.__doc__
            assert told["author"] is None
            schema = (await http.get("/schema")).json()
            assert set(schema) == {"action", "observation", "state", "reset_observation"}
            assert schema["action"]["required"] == ["number"]
            openapi = (await http.get("/openapi.json")).json()
            assert openapi["info"]["version"]
            assert {"/reset", "/step", "/state", "/mcp"} <= set(openapi["paths"])
            assert (await http.get("/docs")).status_code == 200


async def test_http_steps_are_stateless() -> None:
    with serving(LineWorld) as served:
        async with client(served.url) as http:
            first = (await http.post("/reset", json={"seed": 4, "start": 3})).json()
            assert first["observation"]["position"] == 3
            step = (await http.post("/step", json={"action": {"steps": 2}})).json()
            assert (step["observation"]["position"], step["done"]) == (2, False)
            wrong = await http.post("/step", json={"action": {"steps": "far"}})
            assert wrong.status_code == 422
            assert wrong.json()["detail"][0]["loc"] == ["steps"]
            assert (await http.post("/reset", json={"seed": -1})).status_code == 422
            assert (await http.post("/reset", json={"begin": 3})).status_code == 422
            assert (await http.post("/step", content=b"[" * 100_000)).status_code == 422
        assert served.sessions.capacity.in_use == 0


async def test_a_requests_own_time_limit_is_kept() -> None:
    with serving(Slow) as served:
        async with client(served.url) as http:
            body = {"action": {"seconds": 2.0}, "timeout_s": 0.1}
            reply = await http.post("/step", json=body)
            assert reply.status_code == 504
            assert "longer than 0.1 s" in reply.json()["detail"]["message"]


async def test_a_requests_own_time_limit_cannot_exceed_that_of_the_server() -> None:
    with serving(Slow, step_timeout=0.1) as served:
        async with client(served.url) as http:
            body = {"action": {"seconds": 2.0}, "timeout_s": 1e6}
            reply = await http.post("/step", json=body)
            assert reply.status_code == 504
            assert "longer than 0.1 s" in reply.json()["detail"]["message"]


async def test_tasks_are_listed_by_split() -> None:
    with serving("catch") as served:
        async with client(served.url) as http:
            assert (await http.get("/list_environments")).json() == ["catch"]
            assert (await http.get("/catch/splits")).json() == [
                {"name": "train", "type": "train"},
                {"name": "test", "type": "test"},
            ]
            split = {"split": "test"}
            assert (await http.post("/catch/num_tasks", json=split)).json() == {"num_tasks": 10000}
            task = (await http.post("/catch/task", json=split | {"index": 2})).json()
            assert task == {"task": {"seed": 1_000_002}}
            some = await http.post("/catch/task_range", json=split | {"start": 1, "stop": 3})
            assert some.json() == {"tasks": [{"seed": 1_000_001}, {"seed": 1_000_002}]}
            listed = (await http.post("/catch/tasks", json=split)).json()
            assert len(listed["tasks"]) == 1000 and listed["env_name"] == "catch"
            assert (await http.post("/catch/task", json=split | {"index": -1})).status_code == 400
            assert (await http.post("/catch/num_tasks", json={"split": "x"})).status_code == 400
            assert (await http.get("/chess/splits")).status_code == 404


class Countable:
    """Knows how many tasks it has, but not which; like an environment of OpenEnv."""

    def reset(self, seed: int | None = None) -> Observation:
        return Observation()

    def step(self, action: Action) -> Observation:
        return Observation(done=True)

    def num_tasks(self, split: str) -> int:
        return 2


async def test_an_environment_without_a_method_for_tasks_says_so() -> None:
    with serving(Countable) as served:
        async with client(served.url) as http:
            (name,) = (await http.get("/list_environments")).json()
            for reply, method in (
                (await http.get(f"/{name}/splits"), "list_splits"),
                (await http.post(f"/{name}/task", json={"split": "x", "index": 0}), "get_task"),
                (await http.post(f"/{name}/task_range", json={"split": "x"}), "get_task"),
            ):
                assert reply.status_code == 501
                assert f"does not implement {method}()" in reply.json()["detail"]


async def test_json_rpc_answers_every_mistake_with_its_code() -> None:
    async def code(http: httpx.AsyncClient, body: Any) -> int:
        content = body if isinstance(body, bytes) else to_json(body)
        reply = await http.post("/mcp", content=content)
        assert reply.status_code == 200
        return int(reply.json()["error"]["code"])

    with serving(Two) as served:
        async with client(served.url) as http:
            assert await code(http, b"{nope") == -32700
            assert await code(http, b"[" * 100_000) == -32700
            assert await code(http, [1]) == -32600
            assert await code(http, {"jsonrpc": "1.0", "method": "ping"}) == -32600
            assert await code(http, rpc("tools/fly")) == -32601
            assert await code(http, rpc("tools/call")) == -32602
            assert await code(http, rpc("tools/call", name="fly")) == -32602
            assert await code(http, rpc("tools/call", name="double", arguments={})) == -32602
            assert await code(http, rpc("tools/list", session_id="7-x")) == -32602
            assert await code(http, rpc("openenv/session/close", session_id="7-x")) == -32602
        assert served.sessions.capacity.in_use == 0


async def test_a_session_made_over_http_is_shared_with_a_socket() -> None:
    with serving(Counter, max_sessions=2, queue_timeout=0.1) as served:
        async with client(served.url) as http:

            async def ask(method: str, **params: Any) -> dict[str, Any]:
                reply = await http.post("/mcp", json=rpc(method, **params))
                return dict(reply.json())

            made = await ask("openenv/session/create")
            id = made["result"]["session_id"]
            async with websocket(f"{served.ws}?session_id={id}") as line:
                await line.send('{"type":"reset","data":{"goal":5}}')
                await line.recv()
                called = await ask("tools/call", name="add", arguments={"number": 2}, session_id=id)
                assert called["result"]["data"] == "Total 2."
                await line.send('{"type":"step","data":{"number":3}}')
                assert from_json(await line.recv())["data"]["reward"] == 1.0
                async with websocket(f"{served.ws}?session_id={id}") as intruder:
                    refused = from_json(await intruder.recv())["data"]
                    assert refused["code"] == "SESSION_ERROR"
                    assert "already has an attached" in refused["message"]
                later = await ask("openenv/session/close", session_id=id)
                assert later["result"] == {"session_id": id, "closed": False, "closing": True}
            await until(lambda: len(served.sessions) == 0)
            for _ in range(2):
                await ask("openenv/session/create")
            full = await ask("openenv/session/create")
            assert full["error"]["code"] == -32000
            assert full["error"]["data"]["max_sessions"] == 2


async def test_a_session_made_over_http_outlives_a_socket_that_leaves() -> None:
    with serving(Counter) as served:
        async with client(served.url) as http:
            made = await http.post("/mcp", json=rpc("openenv/session/create"))
            id = made.json()["result"]["session_id"]
            for turn in range(2):
                async with websocket(f"{served.ws}?session_id={id}") as line:
                    if turn == 0:
                        await line.send('{"type":"reset","data":{"goal":5}}')
                        await line.recv()
                    await line.send('{"type":"step","data":{"number":2}}')
                    seen = from_json(await line.recv())["data"]["observation"]["text"]
                assert seen == f"Total {2 * (turn + 1)}."
            closed = await http.post("/mcp", json=rpc("openenv/session/close", session_id=id))
            assert closed.json()["result"] == {"session_id": id, "closed": True}
            async with websocket(f"{served.ws}?session_id={id}") as line:
                gone = from_json(await line.recv())["data"]
                assert gone["code"] == "SESSION_ERROR" and "Unknown session_id" in gone["message"]


async def test_json_rpc_over_a_socket_of_its_own() -> None:
    with serving(Two) as served:
        async with websocket(served.ws.replace("/ws", "/mcp")) as line:

            async def ask(method: str, **params: Any) -> Any:
                await line.send(to_json(rpc(method, **params)).decode())
                return from_json(await line.recv())

            greeting = await ask("initialize", protocolVersion="2025-06-18")
            assert greeting["result"]["instructions"].endswith("Hello None.")
            await line.send(to_json(rpc("notifications/initialized", id=None)).decode())
            tools = (await ask("tools/list"))["result"]["tools"]
            assert [tool["name"] for tool in tools] == ["double", "leave"]
            answer = await ask("tools/call", name="double", arguments={"number": 4})
            assert answer["result"]["data"] == {"doubled": 8}
        await until(lambda: len(served.sessions) == 0)


async def test_metrics_count_what_happened() -> None:
    with serving(Counter) as served:
        async with connect(served.url).session() as session, client(served.url) as http:
            await session.reset(goal=9)
            await session.call("add", {"number": 1})
            await session.call("add", {"number": "x"})
            text = (await http.get("/metrics")).text
    for line in (
        "ludus_sessions 1.0",
        "ludus_resets_total 1.0",
        "ludus_steps_total 1.0",
        'ludus_errors_total{code="VALIDATION_ERROR"} 1.0',
        "ludus_step_seconds_count 1.0",
    ):
        assert line in text.splitlines()


async def test_without_the_token_nothing_about_the_environment_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "s3cret-token"
    with serving(Counter, token=secret) as served:
        async with client(served.url) as http:
            assert (await http.get("/health")).status_code == 200
            for path in ("/schema", "/metadata", "/metrics", "/interface", "/openapi.json"):
                reply = await http.get(path)
                assert reply.status_code == 401 and "Bearer" in reply.json()["detail"]
            wrong = {"Authorization": "Bearer s3cret-tokem"}
            assert (await http.get("/schema", headers=wrong)).status_code == 401
            right = {"Authorization": f"Bearer {secret}"}
            assert (await http.get("/schema", headers=right)).status_code == 200
        with pytest.raises(InvalidStatus):
            await websocket(served.ws)
        with pytest.raises(ConnectFailed, match="`token`"):
            await connect(served.url).session().open()
        with pytest.raises(ConnectFailed, match="`token`"):
            await run_checks(served.url)
        for options in ({"token": secret}, {"headers": {"Authorization": f"Bearer {secret}"}}):
            async with EnvClient[Any, Any, Any](base_url=served.url, **options) as typed:
                assert (await typed.reset(goal=3)).observation["text"] == "Reach 3."
        async with connect(served.url, token=secret).session() as session:
            assert isinstance(session, Session) and (await session.reset(goal=3)).content
    said = capfd.readouterr()
    assert secret not in said.out + said.err


async def test_a_body_over_the_limit_is_refused() -> None:
    with serving(Counter, max_frame=10_000) as served:
        async with client(served.url) as http:
            reply = await http.post("/reset", content=b" " * 20_000)
            assert reply.status_code == 413
            assert (await http.post("/mcp", content=b" " * 20_000)).status_code == 413
            assert (await http.get("/health")).status_code == 200
