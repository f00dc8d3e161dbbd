"""The typed clients, imported from the package of their environment as from OpenEnv's."""

from __future__ import annotations

import importlib

import pytest
from conformance import observation_environments as theirs
from conformance.test_ludus_client_on_openenv_server import their_server
from openenv.core.generic_client import GenericEnvClient
from world import serving

from ludus.client.env_client import EnvClient
from ludus.environment.registry import find_environment
from ludus.envs.catch import CatchAction, CatchEnv, CatchObservation
from ludus.envs.echo import EchoAction, EchoEnv
from ludus.envs.guess_number import GuessNumber, GuessNumberAction, GuessNumberEnv
from ludus.envs.reasoning_gym import ReasoningGymAction, ReasoningGymEnv
from ludus.envs.wordle import WordleAction, WordleEnv, WordleObservation

STEMS = {
    "browsergym": "BrowserGym",
    "catch": "Catch",
    "echo": "Echo",
    "guess_number": "GuessNumber",
    "openspiel": "OpenSpiel",
    "python": "Python",
    "reasoning_gym": "ReasoningGym",
    "sudoku": "Sudoku",
    "textarena": "TextArena",
    "wordle": "Wordle",
}


@pytest.mark.parametrize(("name", "stem"), STEMS.items())
def test_the_models_are_those_of_the_wire(name: str, stem: str) -> None:
    models = importlib.import_module(f"ludus.envs.{name}")
    contract = find_environment(name)
    ours = getattr(models, f"{stem}Action").model_json_schema()
    served = contract.action_schema
    assert ours["required"] == served["required"]
    assert ours["properties"].keys() == served["properties"].keys()
    seen = getattr(models, f"{stem}Observation").model_fields.keys()
    assert seen == contract.observation.model_fields.keys()
    assert issubclass(getattr(models, f"{stem}Env"), EnvClient)


def test_wordle_is_played_without_await() -> None:
    with serving("wordle") as served, WordleEnv(base_url=served.url).sync() as client:
        first = client.reset(words=["crane"], max_turns=2)
        assert isinstance(first.observation, WordleObservation)
        assert "Guesses left: 2" in first.observation.text
        missed = client.step(WordleAction(word="slate"))
        assert (missed.reward, missed.done) == (None, False)
        found = client.step(WordleAction(word="[crane]"))
        assert (found.reward, found.done, found.observation.reward) == (1.0, True, 1.0)
        assert client.state().step_count == 2


def test_a_refused_guess_is_an_error_in_the_metadata_and_the_game_goes_on() -> None:
    twin = GuessNumber()
    twin.reset(seed=3)
    with serving("guess_number") as served, GuessNumberEnv(base_url=served.url).sync() as client:
        client.reset(seed=3)
        refused = client.step(GuessNumberAction(number=101))
        assert refused.metadata["error"]["error_type"] == "execution_error"
        assert (refused.reward, refused.done) == (None, False)
        found = client.step(GuessNumberAction(number=twin.secret))
        assert (found.reward, found.done) == (1.0, True)


@pytest.mark.parametrize("name", ["guess_number", "sudoku"])
async def test_openenvs_client_plays_a_game_to_the_top_reward(name: str) -> None:
    contract = find_environment(name)
    twin, total = contract.factory(), 0.0
    twin.reset(seed=11)
    with serving(name) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            result = await client.reset(seed=11)
            while not result.done:
                arguments = twin.oracle().arguments
                twin.step(contract.parse_action(arguments))
                result = await client.step(arguments)
                total += result.reward or 0.0
    assert total == pytest.approx(1.0)


async def test_catch_is_played_to_the_end() -> None:
    with serving("catch") as served:
        async with CatchEnv(base_url=served.url) as client:
            result = await client.reset(seed=1, rows=4, columns=3)
            assert isinstance(result.observation, CatchObservation)
            moves = 0
            while not result.done:
                result = await client.step(CatchAction(direction="stay"))
                moves += 1
            assert moves == 3 and result.reward in (0.0, 1.0)


def test_reasoning_gym_is_asked_and_answered() -> None:
    with serving("reasoning_gym") as served, ReasoningGymEnv(base_url=served.url).sync() as client:
        asked = client.reset(dataset_name="chain_sum", seed=1, size=1)
        assert asked.observation.question
        assert client.step(ReasoningGymAction(answer="no")).done


def test_an_echo_script_that_never_resets_gets_the_same_from_both_servers() -> None:
    def rewards(url: str) -> list[float | None]:
        with EchoEnv(base_url=url).sync() as client:
            results = [client.step(EchoAction(message=text)) for text in ("hello", "hi")]
            assert [result.observation.message_length for result in results] == [5, 2]
            client.reset()
            results.append(client.step(EchoAction(message="again")))
        return [result.reward for result in results]

    with serving("echo") as ours:
        here = rewards(ours.url)
    with their_server(theirs.EchoEnvironment, theirs.EchoAction, theirs.EchoObservation) as url:
        assert here == rewards(url) == [pytest.approx(0.5), pytest.approx(0.2), 0.5]
