"""The oracle of openspiel: perfect play, search and progress."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="needs the extra openspiel")


from envs.openspiel_moves import step
from ludus.agents.oracle import ShadowEnvironment
from ludus.environment.introspection import build_env_spec
from ludus.envs.openspiel import (
    OpenSpiel,
)
from ludus.envs.openspiel.games import load_game
from ludus.envs.openspiel.players import solve_game


def play_oracle(env: OpenSpiel, **task: Any) -> float:
    """The reward of an episode that the oracle plays."""
    env.reset(**task)
    while (call := env.oracle()) is not None:
        result = step(env, call.arguments["action_id"])
    assert result.done and result.reward is not None
    return float(result.reward)


@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("opponent", ["random", "mcts", "minimax"])
def test_the_oracle_never_loses_tic_tac_toe_and_draws_with_a_perfect_opponent(
    opponent: str, seeds: int
) -> None:
    env = OpenSpiel("tic_tac_toe")
    rewards = [play_oracle(env, seed=seed, opponent=opponent) for seed in range(seeds)]
    assert min(rewards) >= 0.5
    if opponent == "minimax":
        assert max(rewards) == 0.5
    if opponent == "random":
        assert sum(rewards) / seeds > 0.95


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_the_oracle_wins_catch_always_and_nim_from_the_second_seat(seeds: int) -> None:
    catch, nim = OpenSpiel(variant="catch"), OpenSpiel(variant="nim")
    assert {play_oracle(catch, seed=seed) for seed in range(seeds)} == {1.0}
    # Misère nim with piles of 1, 3, 5 and 7 is lost for the player who begins.
    won = {play_oracle(nim, seed=seed, seat=1, opponent="minimax") for seed in range(seeds)}
    lost = {play_oracle(nim, seed=seed, seat=0, opponent="minimax") for seed in range(seeds)}
    assert won == {1.0} and lost == {0.0}


def test_a_generator_varies_the_oracle_among_moves_that_are_as_good() -> None:
    env = OpenSpiel("tic_tac_toe")
    env.reset(seed=1, seat=0)
    openings = set()
    for number in range(20):
        call = env.oracle(rng=random.Random(number))
        assert call is not None
        openings.add(call.arguments["action_id"])
    assert openings == {0, 2, 6, 8}  # The corners win most often against random moves.


def test_progress_is_the_reward_that_can_still_be_expected() -> None:
    env = OpenSpiel("tic_tac_toe")
    env.reset(seed=1, seat=0, opponent="minimax")
    assert env.progress() == 0.5
    for move in (0, 1, 3):  # The opponent does not defend the column of 0, 3 and 6.
        env.position.apply_action(move)
    env.position.apply_action(2)
    assert env.progress() == 1.0
    env.reset(seed=1, seat=1, opponent="minimax")
    assert env.progress() == 0.5
    random_opponent = OpenSpiel("tic_tac_toe")
    for seed in range(20):
        random_opponent.reset(seed=seed)
        values, done, rng = [random_opponent.progress()], False, random.Random(f"{seed}/0")
        while not done:
            call = random_opponent.random_action(rng)
            assert call is not None
            seen = step(random_opponent, call.arguments["action_id"])
            values.append(random_opponent.progress())
            done = seen.done
        assert all(value is not None and 0.0 <= value <= 1.0 for value in values)
        assert values[-1] == seen.reward


def test_games_that_are_not_solved_have_no_progress() -> None:
    for game in ("connect_four", "kuhn_poker"):
        env = OpenSpiel(game)
        env.reset(seed=1)
        assert env.progress() is None


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
    assert solve_game(str(load_game("connect_four", chance_seed=0))) is None
    assert [play_oracle(env, seed=seed) for seed in range(3)] == [1.0] * 3


def test_cards_are_played_by_search_that_knows_only_what_the_player_knows() -> None:
    env = OpenSpiel("kuhn_poker")
    rewards = [play_oracle(env, seed=seed, opponent="mcts") for seed in range(20)]
    assert 0.0 < sum(rewards) / len(rewards) < 1.0


def test_games_that_search_cannot_play_have_no_oracle_and_no_such_opponent() -> None:
    declared = {
        name: ShadowEnvironment.has_oracle(build_env_spec(OpenSpiel, variant=name))
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


def test_perfect_play_has_the_known_values() -> None:
    solution = solve_game("tic_tac_toe()")
    assert solution is not None
    game = load_game("tic_tac_toe", chance_seed=0)
    state = game.new_initial_state()
    assert len(solution.best_moves(state)) == 9  # Every opening draws.
    for action in (0, 1):
        state.apply_action(action)
    assert set(solution.best_moves(state)) == {3, 4, 6}  # x wins after a reply on the edge.
