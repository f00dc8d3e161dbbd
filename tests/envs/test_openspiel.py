"""The openspiel environment: moves, seats, opponents, reward and the oracle."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="needs the extra openspiel")

from world import serving

from ludus.agents.oracle import ShadowEnvironment
from ludus.environment.introspection import build_env_spec
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.openspiel import (
    OpenSpiel,
    OpenSpielAction,
    OpenSpielEnv,
    OpenSpielObservation,
)
from ludus.envs.openspiel.games import game_names, load_game
from ludus.envs.openspiel.solver import Equilibrium, PerfectPlay, solve_game
from ludus.protocol.observation_text import build_view
from ludus.protocol.types import Observation

SPEC = "ludus.envs.openspiel:OpenSpiel"


def step(env: OpenSpiel, action_id: int, **fields: Any) -> Observation:
    action = build_env_spec(OpenSpiel).parse_action({"action_id": action_id, **fields})
    observation = env.step(action)
    assert isinstance(observation, Observation)
    return observation


def play_oracle(env: OpenSpiel, **task: Any) -> float:
    """The reward of an episode that the oracle plays."""
    env.reset(**task)
    while (call := env.oracle()) is not None:
        result = step(env, call.arguments["action_id"])
    assert result.done and result.reward is not None
    return float(result.reward)


def test_the_first_message_has_rules_seat_board_and_all_legal_moves() -> None:
    first = OpenSpiel().reset(seed=1, seat=0)
    assert "Three of your marks in a row" in first.text
    assert "You are player 0" in first.text and "moves at random" in first.text
    assert "...\n...\n..." in first.text and "8: x(2,2)" in first.text
    assert first.legal_actions == list(range(9)) and first.game_phase == "initial"
    assert len(first.info_state) == 27


def test_a_model_is_shown_the_text_and_not_the_numbers_beside_it() -> None:
    first = OpenSpiel().reset(seed=1, seat=1).model_dump(mode="json")
    view = build_view(first)
    assert view.shown == ["text"]
    assert {"info_state", "legal_actions"} <= view.hidden.keys()


@pytest.mark.parametrize("wrong", [9, -1, 10**6])
def test_an_illegal_move_is_refused_with_the_legal_ones_and_changes_nothing(wrong: int) -> None:
    env = OpenSpiel()
    env.reset(seed=1, seat=0)
    before = str(env.position)
    refused = step(env, wrong)
    assert "not a legal move" in refused.metadata["error"]["message"]
    assert "0: x(0,0)" in refused.metadata["error"]["message"]
    assert str(env.position) == before and refused.reward is None and not refused.done


def test_the_action_of_openenvs_clients_is_played_whatever_game_it_names() -> None:
    env = OpenSpiel()
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
    env = OpenSpiel()
    second = env.reset(seed=1, seat=1)
    assert second.opponent_last_action is not None and len(second.legal_actions) == 8
    seats = set()
    for seed in range(10):
        env.reset(seed=seed)
        seats.add(env.seat)
    assert seats == {0, 1}


def test_wins_draws_and_losses_are_worth_1_half_and_0() -> None:
    env = OpenSpiel()
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


@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("opponent", ["random", "mcts", "minimax"])
def test_the_oracle_never_loses_tic_tac_toe_and_draws_with_a_perfect_opponent(
    opponent: str, seeds: int
) -> None:
    env = OpenSpiel()
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
    env = OpenSpiel()
    env.reset(seed=1, seat=0)
    openings = set()
    for number in range(20):
        call = env.oracle(rng=random.Random(number))
        assert call is not None
        openings.add(call.arguments["action_id"])
    assert openings == {0, 2, 6, 8}  # The corners win most often against random moves.


@pytest.mark.parametrize("game", ["tic_tac_toe", "connect_four", "kuhn_poker", "go"])
def test_random_actions_are_legal_moves(game: str) -> None:
    env = OpenSpiel(game)
    for seed in range(3):
        env.reset(seed=seed)
        rng = random.Random(f"{seed}/0")
        for _ in range(30):
            call = env.random_action(rng)
            if call is None:
                break
            assert "error" not in step(env, call.arguments["action_id"]).metadata


@pytest.mark.parametrize(
    ("moves", "text", "action"),
    [
        ([], "Nobody can win with one move.", None),
        ([0, 3, 1, 4], "I can win with 2.", 2),
        ([0, 1, 3, 2], "I can win with 6.", 6),
        ([0, 4, 8, 2], "The opponent could win with 6.", 6),
    ],
)
def test_the_working_tells_who_can_win_with_one_move(
    moves: list[int], text: str, action: int | None
) -> None:
    env = OpenSpiel()
    env.reset(seed=1, seat=0)
    for move in moves:
        env.position.apply_action(move)
    call = env.oracle(rng=random.Random(0), working=True)
    assert call is not None and call.text == text
    assert action in (None, call.arguments["action_id"])


def test_games_of_chance_or_hidden_cards_have_no_working() -> None:
    for game in ("kuhn_poker", "pig", "catch"):
        env = OpenSpiel(game)
        env.reset(seed=1)
        call = env.oracle(working=True)
        assert call is not None and call.text == ""


def test_progress_is_the_reward_that_can_still_be_expected() -> None:
    env = OpenSpiel()
    env.reset(seed=1, seat=0, opponent="minimax")
    assert env.progress() == 0.5
    for move in (0, 1, 3):  # The opponent does not defend the column of 0, 3 and 6.
        env.position.apply_action(move)
    env.position.apply_action(2)
    assert env.progress() == 1.0
    env.reset(seed=1, seat=1, opponent="minimax")
    assert env.progress() == 0.5
    random_opponent = OpenSpiel()
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
    env = OpenSpiel()
    env.reset(seed=3, seat=0, opponent="random")
    step(env, 1)  # Not what the oracle would have begun with.
    first, again = env.oracle(), env.oracle()
    assert first == again
    while (call := env.oracle()) is not None:
        result = step(env, call.arguments["action_id"])
    assert result.done and (result.reward or 0) >= 0.5


def test_the_oracle_beats_a_random_opponent_at_connect_four_by_search() -> None:
    env = OpenSpiel(variant="connect_four")
    assert solve_game(str(load_game("connect_four", {}, chance_seed=0))) is None
    assert [play_oracle(env, seed=seed) for seed in range(3)] == [1.0] * 3


_SEARCHES = """
from ludus.envs.openspiel import OpenSpiel
env = OpenSpiel(variant="hearts")
for seed in range(10):
    env.reset(seed=seed)
    env.play(env.oracle().arguments["action_id"])
    env.reset(seed=seed, opponent="mcts", simulations=30)
print("done")
"""


def test_search_in_hearts_does_not_crash_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SEARCHES],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_games_in_which_the_oracle_gains_nothing_declare_none() -> None:
    declared = {
        name: ShadowEnvironment.has_oracle(build_env_spec(OpenSpiel, variant=name))
        for name in ("tic_tac_toe", "hearts", "coordinated_mp", "bridge")
    }
    assert declared == {
        "tic_tac_toe": True,
        "hearts": True,
        "coordinated_mp": False,
        "bridge": False,
    }


def test_perfect_play_has_the_known_values() -> None:
    solution = solve_game("tic_tac_toe()")
    assert isinstance(solution, PerfectPlay)
    game = load_game("tic_tac_toe", {}, chance_seed=0)
    state = game.new_initial_state()
    assert len(solution.best_moves(state)) == 9  # Every opening draws.
    for action in (0, 1):
        state.apply_action(action)
    assert set(solution.best_moves(state)) == {3, 4, 6}  # x wins after a reply on the edge.


def test_an_equilibrium_of_kuhn_poker_mixes_as_theory_says() -> None:
    solution = solve_game("kuhn_poker()")
    assert isinstance(solution, Equilibrium)
    state = load_game("kuhn_poker", {}, chance_seed=0).new_initial_state()
    for action in (1, 0, 1):  # Cards 1 and 0, and a bet: the second player holds the lowest card.
        state.apply_action(action)
    rng = random.Random(0)
    assert [solution.draw_move(state, rng) for _ in range(50)].count(1) == 0  # It folds.


def test_hidden_cards_are_not_shown_before_the_end() -> None:
    env = OpenSpiel(variant="leduc_poker")
    first = env.reset(seed=1, seat=0)
    others = env.position.information_state_string(1)
    assert "[Private: " in first.text and others not in first.text
    assert first.opponent_last_action is None
    result: Observation = first
    while not result.done:
        result = step(env, 1)
    assert "Cards (public player_0 player_1)" in str(result.model_dump()["text"])


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ({"game_name": "tic_tac_to"}, "tic_tac_toe"),
        ({"game_name": "matrix_rps"}, "no sequential game"),
        ({"game_name": "connect_four", "game_params": {"rowz": 5}}, "rows"),
        ({"game_name": "connect_four", "game_params": {"columns": -3}}, "between 0 and"),
        ({"game_name": "connect_four", "game_params": {"rows": "many"}}, "cannot be loaded"),
        ({"game_name": "connect_four", "opponent": "minimax"}, "too large"),
        # OpenSpiel itself would crash the process, or never return.
        ({"game_name": "connect_four", "game_params": {"rows": 0}}, "between 1 and"),
        ({"game_name": "go_fish", "game_params": {"initial_cards": 0}}, "between 1 and"),
        ({"game_name": "hanabi", "game_params": {"players": 1}}, "between 2 and 5"),
        ({"game_name": "hanabi", "game_params": {"colors": 1}}, "between 4 and 5"),
        ({"game_name": "kriegspiel", "game_params": {"fen": "x"}}, "takes no parameters"),
        ({"game_name": "universal_poker", "game_params": {"numRanks": 0}}, "takes no parameters"),
        ({"seat": 2}, "seat must be"),
        ({"simulations": 0}, "simulations must be"),
        ({"opponent": "human"}, "opponent must be"),
    ],
)
def test_a_wrong_task_is_refused_in_words(task: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        OpenSpiel().reset(seed=1, **task)


def test_parameters_reach_the_game() -> None:
    first = OpenSpiel(variant="connect_four").reset(seed=1, seat=0, game_params={"columns": 4})
    assert first.legal_actions == [0, 1, 2, 3]


_EPISODES = """
import hashlib, random
from ludus.envs.openspiel import OpenSpiel
texts = []
opponents = {"tic_tac_toe": "mcts", "leduc_poker": "random", "negotiation": "random"}
for game, opponent in opponents.items():
    env = OpenSpiel(variant=game)
    result = env.reset(seed=5, opponent=opponent)
    rng = random.Random(5)
    while not env.position.is_terminal():
        texts.append(result.text)
        result = env.play(rng.choice(result.legal_actions))
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


def test_a_seed_gives_the_same_episode_in_another_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", _EPISODES],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1 and len(digests.pop().strip()) == 64


@pytest.mark.parametrize(
    "game",
    [
        *("kuhn_poker", "blackjack", "pig", "hearts", "hanabi"),
        pytest.param("all", marks=pytest.mark.slow),
    ],
)
def test_games_can_be_played_by_random_moves(game: str) -> None:
    for name in game_names() if game == "all" else [game]:
        env = OpenSpiel(variant=name)
        result = env.reset(seed=2)
        rng = random.Random(2)
        for _ in range(60):
            assert result.legal_actions and result.text
            result = env.play(rng.choice(result.legal_actions))
            if env.position.is_terminal():
                assert result.game_phase == "terminal"
                break


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
