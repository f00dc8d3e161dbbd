"""The games of openspiel: arguments, seeds, hidden cards, and random play."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="needs the extra openspiel")


from envs.openspiel_moves import step
from ludus.envs.openspiel import (
    OpenSpiel,
)
from ludus.envs.openspiel.games import game_types
from ludus.protocol.types import Observation


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
        ({"seat": 2}, "seat must be"),
        ({"simulations": 0}, "simulations must be"),
    ],
)
def test_a_wrong_task_is_refused_in_words(task: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        OpenSpiel("tic_tac_toe").reset(seed=1, **task)


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
    for name in game_types() if game == "all" else [game]:
        env = OpenSpiel(variant=name)
        result = env.reset(seed=2)
        rng = random.Random(2)
        for _ in range(60):
            assert result.legal_actions and result.text
            result = env.play(rng.choice(result.legal_actions))
            if env.position.is_terminal():
                assert result.game_phase == "terminal"
                break
