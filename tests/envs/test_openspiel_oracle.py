"""The oracle of openspiel: moves that win at once, and search."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="needs the extra openspiel")


from envs.openspiel_moves import step
from ludus.agents.oracle import OracleEnvironment
from ludus.environment.introspection import build_env_spec
from ludus.envs.openspiel import (
    OpenSpiel,
)


def play_oracle(env: OpenSpiel, **task: Any) -> float:
    """The reward of an episode that the oracle plays."""
    env.reset(**task)
    while (call := env.oracle()) is not None:
        result = step(env, call.arguments["action_id"])
    assert result.done and result.reward is not None
    return float(result.reward)


@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("opponent", ["random", "mcts"])
def test_the_oracle_never_loses_tic_tac_toe(opponent: str, seeds: int) -> None:
    env = OpenSpiel("tic_tac_toe")
    rewards = [play_oracle(env, seed=seed, opponent=opponent) for seed in range(seeds)]
    assert min(rewards) >= 0.5
    if opponent == "random":
        assert sum(rewards) / seeds > 0.9


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_the_oracle_wins_catch_always_and_nim_nearly_always(seeds: int) -> None:
    catch, nim = OpenSpiel(variant="catch"), OpenSpiel(variant="nim")
    assert {play_oracle(catch, seed=seed) for seed in range(seeds)} == {1.0}
    assert sum(play_oracle(nim, seed=seed) for seed in range(seeds)) >= 0.9 * seeds


def test_a_generator_varies_the_oracle_among_moves_that_are_as_good() -> None:
    env = OpenSpiel("tic_tac_toe")
    env.reset(seed=1, seat=0)
    for move in (0, 3, 1, 6, 4, 5):  # Three in a row with 2, with 7 and with 8.
        env.position.apply_action(move)
    moves = set()
    for number in range(30):
        call = env.oracle(rng=random.Random(number))
        assert call is not None
        moves.add(call.arguments["action_id"])
    assert moves == {2, 7, 8}


def test_the_oracle_plays_on_from_any_state() -> None:
    env = OpenSpiel("tic_tac_toe")
    env.reset(seed=3, seat=0, opponent="random")
    step(env, 1)  # Not what the oracle would have begun with.
    first, again = env.oracle(), env.oracle()
    assert first == again
    while (call := env.oracle()) is not None:
        result = step(env, call.arguments["action_id"])
    assert result.done and (result.reward or 0) >= 0.5


def test_the_oracle_beats_a_random_opponent_at_connect_four_by_search() -> None:
    env = OpenSpiel(variant="connect_four")
    assert [play_oracle(env, seed=seed) for seed in range(3)] == [1.0] * 3


def test_cards_are_played_by_search_that_knows_only_what_the_player_knows() -> None:
    env = OpenSpiel("kuhn_poker")
    rewards = [play_oracle(env, seed=seed, opponent="mcts") for seed in range(20)]
    assert 0.0 < sum(rewards) / len(rewards) < 1.0


def test_games_that_search_cannot_play_have_no_oracle_and_no_such_opponent() -> None:
    declared = {
        name: OracleEnvironment.has_oracle(build_env_spec(OpenSpiel, variant=name))
        for name in ("tic_tac_toe", "leduc_poker", "hearts", "bridge", "2048")
    }
    assert declared == {
        "tic_tac_toe": True,
        "leduc_poker": True,
        "hearts": False,
        "bridge": False,
        "2048": False,
    }
    env = OpenSpiel("hearts")
    env.reset(seed=1)
    with pytest.raises(NotImplementedError, match="hearts has no oracle"):
        env.oracle()
    with pytest.raises(ValueError, match="mcts cannot play hearts"):
        env.reset(seed=1, opponent="mcts")
