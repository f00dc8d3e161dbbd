"""The openspiel environment: moves, seats, rewards, and the wire."""

from __future__ import annotations

import asyncio
import random

import pytest

pytest.importorskip("pyspiel", reason="needs the extra openspiel")

from world import serving

from envs.openspiel_moves import step
from ludus.environment.introspection import build_env_spec
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.openspiel import (
    OpenSpiel,
    OpenSpielAction,
    OpenSpielEnv,
    OpenSpielObservation,
)
from ludus.protocol.observation_text import build_view
from ludus.protocol.types import Observation

SPEC = "ludus.envs.openspiel:OpenSpiel"


def test_the_first_message_has_rules_seat_board_and_all_legal_moves() -> None:
    first = OpenSpiel("tic_tac_toe").reset(seed=1, seat=0)
    assert "Three of your marks in a row" in first.text
    assert "You are player 0" in first.text and "moves at random" in first.text
    assert "...\n...\n..." in first.text and "8: x(2,2)" in first.text
    assert first.legal_actions == list(range(9)) and first.game_phase == "initial"
    assert len(first.info_state) == 27


def test_a_model_is_shown_the_text_and_not_the_numbers_beside_it() -> None:
    first = OpenSpiel("tic_tac_toe").reset(seed=1, seat=1).model_dump(mode="json")
    view = build_view(first)
    assert view.shown == ["text"]
    assert {"info_state", "legal_actions"} <= set(view.hidden)


@pytest.mark.parametrize("wrong", [9, -1, 10**6])
def test_an_illegal_move_is_refused_with_the_legal_ones_and_changes_nothing(wrong: int) -> None:
    env = OpenSpiel("tic_tac_toe")
    env.reset(seed=1, seat=0)
    before = str(env.position)
    refused = step(env, wrong)
    assert "not a legal move" in refused.metadata["error"]["message"]
    assert "0: x(0,0)" in refused.metadata["error"]["message"]
    assert str(env.position) == before and refused.reward is None and not refused.done


def test_the_action_of_openenvs_clients_is_played_whatever_game_it_names() -> None:
    env = OpenSpiel("tic_tac_toe")
    env.reset(seed=1, seat=0)
    step(env, 4, game_name="catch", game_params={"rows": 3})
    assert str(env.position)[5] == "x"
    (tool,) = build_env_spec(OpenSpiel).tools or ()
    assert list(tool.input_schema["properties"]) == ["action_id"]


def test_the_models_are_those_of_the_wire() -> None:
    spec = build_env_spec(OpenSpiel)
    ours = OpenSpielAction.model_json_schema()["properties"].keys()
    assert spec.action_schema["properties"].keys() == ours
    assert spec.action.model_fields.keys() == OpenSpielAction.model_fields.keys()
    assert spec.observation is spec.reset_observation is OpenSpielObservation


def test_the_state_is_openenvs_and_empty_before_a_reset() -> None:
    env = OpenSpiel(variant="nim")
    assert env.state.model_extra == {}
    env.reset(seed=1, seat=1)
    state = env.state.model_dump()
    assert (state["game_name"], state["agent_player"], state["num_players"]) == ("nim", 1, 2)


def test_a_seat_is_taken_by_argument_or_by_seed() -> None:
    env = OpenSpiel("tic_tac_toe")
    second = env.reset(seed=1, seat=1)
    assert second.opponent_last_action is not None and len(second.legal_actions) == 8
    seats = set()
    for seed in range(10):
        env.reset(seed=seed)
        seats.add(env.seat)
    assert seats == {0, 1}


def test_wins_draws_and_losses_are_worth_1_half_and_0() -> None:
    env = OpenSpiel("tic_tac_toe")
    rewards = set()
    for seed in range(40):
        rng = random.Random(seed)
        result: Observation = env.reset(seed=seed)
        while not result.done:
            result = step(env, rng.choice(env.position.legal_actions()))
        value = env.position.returns()[env.seat]
        assert result.reward == {1.0: 1.0, 0.0: 0.5, -1.0: 0.0}[value]
        assert result.metadata["rewards"] == {"game_return": value}
        rewards.add(result.reward)
    assert rewards == {0.0, 0.5, 1.0}


async def test_episodes_at_once_do_not_disturb_each_other() -> None:
    async def play(seed: int) -> list[str]:
        runner = EnvironmentRunner(build_env_spec(OpenSpiel))
        await runner.start()
        observation = await runner.reset({"seed": seed, "opponent": "mcts"})
        texts, rng = [], random.Random(seed)
        while not observation.done:
            texts.append(observation.model_dump()["text"])
            legal = observation.model_dump()["legal_actions"]
            observation = await runner.step({"action_id": rng.choice(legal)})
        await runner.close()
        return texts

    alone = [await play(seed) for seed in range(4)]
    assert await asyncio.gather(*(play(seed) for seed in range(4))) == alone


def test_a_typed_client_plays_a_served_game() -> None:
    with serving(SPEC) as served, OpenSpielEnv(base_url=served.url).sync() as client:
        result = client.reset(seed=4, game_name="tic_tac_toe", seat=0)
        assert result.observation.legal_actions == list(range(9))
        while not result.done:
            action = OpenSpielAction(action_id=result.observation.legal_actions[0])
            result = client.step(action)
        assert result.observation.game_phase == "terminal" and result.reward in (0.0, 0.5, 1.0)
