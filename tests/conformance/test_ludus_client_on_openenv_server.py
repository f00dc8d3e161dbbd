"""Our session and client, against servers made with OpenEnv's `create_fastapi_app`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response, WebSocket
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

from conformance import observation_environments as theirs
from conformance.asgi import running_app
from conformance.openenv_environments import (
    CalculatorEnvironment,
    GuessAction,
    GuessEnvironment,
    GuessObservation,
)
from conformance.openenv_games import OpenSpielEnvironment
from ludus import (
    Action,
    CollectConfig,
    EnvClient,
    Observation,
    State,
    ToolCall,
    collect,
    connect,
    episodes,
)
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent, ScriptedAgent
from ludus.check import run_checks
from ludus.errors import ConfigError, ConnectFailed, InvalidAction, SessionLost


def their_server(
    factory: Callable[[], Any], action: type, observation: type
) -> AbstractContextManager[str]:
    return running_app(create_fastapi_app(factory, action, observation, max_concurrent_envs=4))


def guessing() -> Any:
    return their_server(GuessEnvironment, GuessAction, GuessObservation)


def calculating() -> Any:
    return their_server(CalculatorEnvironment, CallToolAction, CallToolObservation)


async def test_a_typed_server_of_theirs_needs_no_wrapper() -> None:
    with guessing() as url:
        async with connect(url).session() as session:
            (tool,) = session.tools
            assert tool.name == "guess"
            assert set(tool.input_schema["properties"]) == {"number", "note"}
            first = await session.reset(seed=14)
            assert first.content == "Guess from 0 to 9.\nguesses: 0"
            assert first.metadata == {"seed": 14}
            wrong = await session.call("guess", {"number": "3"})
            assert (wrong.content, wrong.reward, wrong.done) == ("Wrong.\nguesses: 1", 0.0, False)
            bad = await session.call("guess", {"number": "three"})
            assert bad.error is not None
            right = await session.call("guess", {"number": 4})
            assert (right.reward, right.done) == (1.0, True)
            assert (await session.state())["step_count"] == 2


async def test_an_mcp_server_of_theirs_needs_no_wrapper() -> None:
    with calculating() as url:
        async with connect(url).session() as session:
            assert {tool.name for tool in session.tools} == {"add", "shout"}
            await session.reset()
            assert (await session.call("add", {"a": 2, "b": "3"})).content == "5"
            assert (await session.call("shout", {"word": "oi"})).content == "OI"


class TheirGuess(Action):
    number: int


class TheirView(Observation):
    text: str
    guesses: int = 0


class GuessEnv(EnvClient[TheirGuess, TheirView, State]):
    """A typed client for a server that we did not write."""


async def test_a_typed_client_reads_their_observations() -> None:
    with guessing() as url:
        async with GuessEnv(base_url=url) as client:
            assert (await client.reset(seed=5)).observation.text == "Guess from 0 to 9."
            result = await client.step(TheirGuess(number=5))
            assert result.observation == TheirView(text="Right.", guesses=1, reward=1.0, done=True)
            assert (await client.state()).step_count == 1


async def test_their_errors_keep_code_and_details() -> None:
    with guessing() as url:
        async with EnvClient[Any, Any, Any](base_url=url) as client:
            await client.reset()
            with pytest.raises(InvalidAction) as caught:
                await client.step({"number": "x"})
            assert caught.value.code == "VALIDATION_ERROR"
            assert caught.value.details["errors"][0]["loc"] == ["number"]


async def test_a_lost_connection_to_their_server_is_said_and_never_papered_over() -> None:
    with guessing() as url:
        client = EnvClient[Any, Any, Any](base_url=url)
        await client.reset(seed=1)
        assert client._socket is not None and client._socket._connection is not None
        client._socket._connection.transport.abort()
        with pytest.raises(SessionLost, match="cannot resume"):
            await client.step({"number": 1})
        with pytest.raises(SessionLost):
            await client.step({"number": 1})


async def test_thirty_episodes_at_once_share_the_four_sessions_of_their_server(
    tmp_path: Path,
) -> None:
    with guessing() as url:
        guesses = [ToolCall(name="guess", arguments={"number": number}) for number in range(10)]
        config = CollectConfig(agent=ScriptedAgent(*guesses), num_episodes=30)
        outcome = await collect(url, tmp_path / "run", config)
    assert outcome.summary["complete"]
    found = list(episodes(tmp_path / "run/episodes.jsonl"))
    assert {(episode.reward, episode.done) for episode in found} == {(1.0, True)}
    assert {episode.turns for episode in found} == {
        (episode.seed or 0) % 10 + 1 for episode in found
    }


def spieling() -> Any:
    types = (theirs.OpenSpielAction, theirs.OpenSpielObservation)
    return their_server(OpenSpielEnvironment, *types)


async def test_the_oracle_refuses_a_server_that_does_not_have_its_tools(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyspiel", reason="needs the extra openspiel")
    with spieling() as url:
        for players in ({"agent": OracleAgent()}, {"agent": RandomAgent(), "tutor": OracleAgent()}):
            config = CollectConfig(base_url=url, num_episodes=4, **players)
            with pytest.raises(ConfigError, match="calls play, but the server offers") as caught:
                await collect("openspiel", tmp_path / "run", config)
            assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


async def test_exploring_calls_the_tools_that_the_server_has(tmp_path: Path) -> None:
    pytest.importorskip("pyspiel", reason="needs the extra openspiel")
    with spieling() as url:
        agent = ScriptedAgent(*[ToolCall(name="open_spiel", arguments={"action_id": 1})] * 20)
        config = CollectConfig(agent=agent, base_url=url, num_episodes=4, explore=1.0)
        await collect("openspiel", tmp_path / "run", config)
    found = list(episodes(tmp_path / "run/episodes.jsonl"))
    assert {
        call.function.name
        for episode in found
        for message in episode.messages
        for call in message.tool_calls or ()
    } == {"open_spiel"}
    assert all(episode.turns and not episode.malformed_calls for episode in found)


async def test_collecting_from_an_mcp_server_of_theirs(tmp_path: Path) -> None:
    with calculating() as url:
        config = CollectConfig(agent=RandomAgent(), num_episodes=8)
        await collect(url, tmp_path / "run", config)
    found = list(episodes(tmp_path / "run/episodes.jsonl"))
    assert {episode.stop_reason.value for episode in found} == {"max_turns"}
    assert {len(episode.tools) for episode in found} == {2}


class Failing(GuessEnvironment):
    """Cannot be built, or not be reset."""

    def __init__(self, *, builds: bool) -> None:
        if not builds:
            raise RuntimeError("no database")
        super().__init__()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **task: Any
    ) -> GuessObservation:
        raise RuntimeError("no file")


@pytest.mark.parametrize(("builds", "failed"), [(False, "starts"), (True, "resets")])
async def test_check_says_what_fails_on_a_server_with_one_session(
    builds: bool, failed: str
) -> None:
    app = create_fastapi_app(partial(Failing, builds=builds), GuessAction, GuessObservation)
    with running_app(app) as url:
        report = await run_checks(url)
    by_check = {finding.check: finding for finding in report.findings}
    assert by_check[failed].verdict == "fail"
    assert ("factory" in by_check[failed].detail) is not builds
    for name in ("sessions do not see each other", "weak players score below the oracle"):
        assert not builds or by_check[name].detail == "not checked: see 'resets'"


async def test_one_session_at_a_time_is_no_lack_of_isolation() -> None:
    app = create_fastapi_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=1)
    with running_app(app) as url:
        report = await run_checks(url, sessions=1, seeds=2)
    verdicts = {finding.check: finding for finding in report.findings}
    assert verdicts["sessions do not see each other"].verdict == "skip"


@pytest.mark.parametrize(
    ("status", "message"), [(None, "not an environment server"), (403, "`token`"), (500, "failed")]
)
async def test_a_server_that_refuses_the_websocket_is_described(
    status: int | None, message: str
) -> None:
    """Of a web application without `/ws`, and of gateways that refuse or fail."""
    app = FastAPI()
    if status is not None:

        @app.middleware("http")
        async def refuse(request: Request, call_next: Any) -> Response:
            return Response(status_code=status or 200)

        @app.websocket("/ws")
        async def refuse_upgrade(websocket: WebSocket) -> None:
            await websocket.send_denial_response(Response(status_code=status or 200))

    with running_app(app) as url, pytest.raises(ConnectFailed, match=message):
        async with connect(url).session():
            pass
