"""`ludus.serve.create_app` takes what OpenEnv's `create_app` takes, and any ASGI server runs it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from conformance.asgi import running_app
from conformance.openenv_environments import (
    CalculatorEnvironment,
    GuessAction,
    GuessEnvironment,
    GuessObservation,
)
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import ConcurrencyConfig
from openenv.core.generic_client import GenericEnvClient
from world import Counter

from ludus import Action, Observation, connect
from ludus.envs.echo import Echo, EchoAction, EchoEnv, EchoObservation
from ludus.errors import ConfigError
from ludus.serve import create_app


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


def test_a_token_in_the_environment_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_TOKEN", "secret")
    with running(create_app(GuessEnvironment, GuessAction, GuessObservation)) as url:
        assert httpx.get(f"{url}/metadata").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/metadata", headers=headers).status_code == 200
