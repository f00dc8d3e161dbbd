"""`ludus.serve.create_app` takes what OpenEnv's `create_app` takes, and any ASGI server runs it."""

from __future__ import annotations

import asyncio
import inspect
import runpy
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conformance.asgi import running_app
from conformance.observation_environments import EchoAction as TheirEchoAction
from conformance.observation_environments import EchoEnvironment
from conformance.observation_environments import EchoObservation as TheirEchoObservation
from conformance.openenv_environments import (
    CalculatorEnvironment,
    GuessAction,
    GuessEnvironment,
    GuessObservation,
)
from openenv.core.env_server.http_server import create_app as their_create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import ConcurrencyConfig, ServerMode, State
from openenv.core.generic_client import GenericEnvClient
from starlette.testclient import TestClient
from world import Counter

from ludus import Action, Observation, connect
from ludus.envs.echo import Echo, EchoAction, EchoEnv, EchoObservation
from ludus.errors import ConfigError
from ludus.publish.build_context import app_module
from ludus.serve import create_app
from ludus.serve.config import ServeError


def running(app: Any) -> AbstractContextManager[str]:
    return running_app(app, ws="websockets-sansio")


def test_a_server_script_of_theirs_serves_their_clients() -> None:
    app = create_app(
        GuessEnvironment, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=4
    )
    with running(app) as url:
        with GenericEnvClient(base_url=url).sync() as client:
            assert client.reset(seed=14).observation["text"] == "Guess from 0 to 9."
            result = client.step({"number": 4})
            assert (result.reward, result.done) == (1.0, True)
        assert httpx.get(f"{url}/list_environments").json() == ["guess"]
        assert httpx.get(f"{url}/metadata").json()["name"] == "guess"


@pytest.mark.parametrize(
    ("environment", "types", "actions"),
    [
        (GuessEnvironment, (GuessAction, GuessObservation), ({"number": 4}, {"number": 3})),
        (EchoEnvironment, (TheirEchoAction, TheirEchoObservation), ({"message": "Hi!"},)),
    ],
)
def test_it_replies_like_openenvs_app_over_http_and_websocket(
    environment: type, types: tuple[type, type], actions: tuple[dict[str, Any], ...]
) -> None:
    replies = []
    for make in (create_app, their_create_app):
        with TestClient(make(environment, *types, env_name="game")) as client:
            got = [client.get("/health").json(), client.post("/reset", json={"seed": 3}).json()]
            got += [client.post("/step", json={"action": action}).json() for action in actions]
            with client.websocket_connect("/ws") as socket:
                steps = [{"type": "step", "data": action} for action in actions]
                for frame in ({"type": "reset", "data": {"seed": 3}}, *steps, {"type": "state"}):
                    socket.send_json(frame)
                    got.append(socket.receive_json())
            replies.append(got)
    assert replies[0] == replies[1]


async def test_a_factory_with_tools_is_served() -> None:
    def make() -> CalculatorEnvironment:
        return CalculatorEnvironment()

    app = create_app(make, CallToolAction, CallToolObservation, "calculator")
    with running(app) as url:
        async with connect(url).session() as session:
            await session.reset()
            assert (await session.call("add", {"a": 2, "b": 3})).content == "5"


def test_an_environment_of_ours_is_served() -> None:
    with (
        running(create_app(Echo, EchoAction, EchoObservation, env_name="echo")) as url,
        EchoEnv(base_url=url).sync() as client,
    ):
        client.reset()
        assert client.step(EchoAction(message="hi")).observation.echoed_message == "hi"


@pytest.mark.parametrize(
    "limit",
    [
        {"max_concurrent_envs": 1},
        {"concurrency_config": ConcurrencyConfig(max_concurrent_envs=1, session_timeout=60)},
    ],
)
def test_there_are_no_more_sessions_than_it_was_told(limit: dict[str, Any]) -> None:
    app = create_app(GuessEnvironment, GuessAction, GuessObservation, **limit)
    assert app.state.sessions.config.max_sessions == 1


class Lonely(GuessEnvironment):
    """Does not say that several of it may run."""

    SUPPORTS_CONCURRENT_SESSIONS = False


def test_an_environment_that_runs_alone_gets_one_session_and_no_more() -> None:
    app = create_app(Lonely, GuessAction, GuessObservation)
    assert app.state.sessions.config.max_sessions == 1
    with pytest.raises(ConfigError, match="`max_concurrent_envs` is 2"):
        create_app(Lonely, GuessAction, GuessObservation, max_concurrent_envs=2)


def test_an_instance_and_two_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="an instance of Counter"):
        create_app(Counter(), Action, Observation)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not both"):
        create_app(Counter, Action, Observation, None, 2, ConcurrencyConfig())


def test_openenvs_other_arguments_are_accepted_in_its_order() -> None:
    def build_page(*arguments: Any) -> None:
        raise AssertionError("There is no Gradio page.")

    page = (build_page, "Maze", True, False, "A title", State)
    named: Any = {"custom_tab_primary": True, "show_default_tab": False, "title_override": "Maze"}
    for app in (
        create_app(GuessEnvironment, GuessAction, GuessObservation, "guess", 3, None, *page),
        create_app(
            GuessEnvironment,
            GuessAction,
            GuessObservation,
            max_concurrent_envs=3,
            gradio_builder=build_page,
            custom_tab_name="Maze",
            mode="simulation",
            **named,
        ),
    ):
        assert app.state.sessions.config.max_sessions == 3
    theirs = inspect.signature(their_create_app).parameters
    assert theirs.keys() <= inspect.signature(create_app).parameters.keys()


def test_the_production_mode_has_no_routes_that_control_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = (GuessEnvironment, GuessAction, GuessObservation)

    def statuses(app: Any) -> list[int]:
        with TestClient(app) as http:
            paths = ("/health", "/schema", "/state")
            return [http.get(path).status_code for path in paths] + [
                http.post(path, json={"action": {"number": 1}}).status_code
                for path in ("/reset", "/step")
            ]

    assert statuses(create_app(*models)) == [200] * 5
    assert statuses(create_app(*models, mode=ServerMode.PRODUCTION)) == [200, 200, 404, 404, 404]
    monkeypatch.setenv("OPENENV_MODE", "production")
    assert statuses(create_app(*models)) == [200, 200, 404, 404, 404]
    with pytest.raises(ConfigError, match="'staging'"):
        create_app(*models, mode="staging")


def get_status(app: Any, own_address: str, host: str) -> int:
    """The status for a request that names a host, over a connection to an address of the server."""
    transport = httpx.ASGITransport(app)

    async def get() -> int:
        url = f"http://{own_address}:8000/metadata"
        async with httpx.AsyncClient(transport=transport) as http:
            return (await http.get(url, headers={"Host": host})).status_code

    return asyncio.run(get())


def test_a_server_that_others_reach_answers_to_any_host_until_hosts_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = (GuessEnvironment, GuessAction, GuessObservation)
    app = create_app(*models)
    space = "user-guess.hf.space"
    assert get_status(app, "172.17.0.2", space) == 200
    with TestClient(app) as http:
        assert http.get("/health").status_code == 200
        with http.websocket_connect("/ws") as socket:
            socket.send_json({"type": "reset", "data": {"seed": 4}})
            assert socket.receive_json()["data"]["observation"]["text"] == "Guess from 0 to 9."
    for loopback in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"):
        assert get_status(app, loopback, "localhost:8000") == 200
        assert get_status(app, loopback, space) == 421, "DNS rebinding"
    both = ["*.hf.space", "env.example"]
    for variable, hosts in (("", both), ("*.hf.space, env.example", None), (both[0], both[1:])):
        monkeypatch.setenv("LUDUS_ALLOW_HOSTS", variable)
        app = create_app(*models, allow_hosts=hosts)
        assert get_status(app, "127.0.0.1", space) == 200
        assert get_status(app, "172.17.0.2", "env.example") == 200
        assert get_status(app, "172.17.0.2", "other.example") == 421


def test_a_page_of_an_allowed_origin_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    models = (GuessEnvironment, GuessAction, GuessObservation)
    headers = {"Origin": "https://play.example"}
    with TestClient(create_app(*models)) as http:
        assert http.get("/metadata", headers=headers).status_code == 403
    with TestClient(create_app(*models, allow_origins=["https://play.example"])) as http:
        assert http.get("/metadata", headers=headers).status_code == 200
    monkeypatch.setenv("LUDUS_ALLOW_ORIGINS", "https://play.example")
    with TestClient(create_app(*models)) as http:
        assert http.get("/metadata", headers=headers).status_code == 200
    with pytest.raises(ServeError, match=r"'play\.example'"):
        create_app(*models, allow_origins=["play.example"])


def test_in_a_space_the_hub_may_show_the_pages_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    models = (GuessEnvironment, GuessAction, GuessObservation)
    framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}
    with TestClient(create_app(*models)) as http:
        assert http.get("/web", headers=framed).status_code == 403
    monkeypatch.setenv("SPACE_ID", "user/guess")
    with TestClient(create_app(*models)) as http:
        assert http.get("/web", headers=framed).status_code == 200
        assert http.get("/state", headers=framed).status_code == 403
    with TestClient(create_app(*models, allow_origins=[])) as http:
        assert http.get("/web", headers=framed).status_code == 403


def test_a_written_application_accepts_the_hosts_in_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "server" / "app.py"
    file.parent.mkdir()
    file.write_text(app_module("catch"))
    monkeypatch.setenv("LUDUS_ALLOW_HOSTS", "env.example")
    app = runpy.run_path(str(file))["app"]
    for host, status in (("u-g.hf.space", 200), ("env.example", 200), ("other.example", 421)):
        assert get_status(app, "172.17.0.2", host) == status


def test_a_token_in_the_environment_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_TOKEN", "secret")
    with running(create_app(GuessEnvironment, GuessAction, GuessObservation)) as url:
        assert httpx.get(f"{url}/metadata").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/metadata", headers=headers).status_code == 200
