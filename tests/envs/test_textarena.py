"""The textarena environment: messages, the library's reward and seeds."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textarena", reason="needs the extra textarena")

from world import serving

from ludus.environment.introspection import build_env_spec
from ludus.envs.textarena import TextArena, TextArenaAction, TextArenaEnv, TextArenaObservation
from ludus.envs.textarena.environment import game_modules
from ludus.errors import ToolError
from ludus.protocol.observation_text import build_view
from ludus.protocol.types import Observation

SPEC = "ludus.envs.textarena:TextArena"


def step(env: TextArena, message: str) -> Observation:
    observation = env.step(build_env_spec(TextArena).parse_action({"message": message}))
    assert isinstance(observation, Observation)
    return observation


def test_the_first_message_has_the_rules_and_how_it_is_scored() -> None:
    first = TextArena().reset(seed=1)
    assert "between 1 and 20" in first.text and "gives a reward" in first.text
    assert first.legal_players == [0]
    assert build_view(first.model_dump(mode="json")).shown == ["text"]


def test_the_models_are_those_of_the_wire() -> None:
    spec = build_env_spec(TextArena)
    ours = TextArenaAction.model_json_schema()["properties"].keys()
    assert spec.action_schema["properties"].keys() == ours
    assert spec.observation is spec.reset_observation is TextArenaObservation


def test_a_step_shows_only_what_is_new() -> None:
    env = TextArena()
    env.reset(seed=1)
    number = env.game.game_number
    result = step(env, f"I try [{number % 20 + 1}]")
    view = build_view(result.model_dump(mode="json"))
    assert view.shown == ["text"]
    assert str(view.content).startswith("The target number is")


def test_the_reward_is_the_librarys() -> None:
    env = TextArena()
    env.reset(seed=1)
    won = step(env, f"[{env.game.game_number}]")
    assert won.done and won.reward == 1.0
    assert won.model_dump()["info"]["invalid_move"] is False
    env.reset(seed=1)
    wrong = env.game.game_number % 20 + 1
    step(env, f"[{wrong}]")
    assert step(env, "no number").reward == 0.0  # The first invalid move is only a warning.
    lost = step(env, "no number either")
    assert lost.done and lost.reward == pytest.approx(1 - abs(wrong - env.game.game_number) / 19)
    assert lost.model_dump()["info"]["invalid_move"] is True


def test_a_reward_that_the_library_confuses_with_the_reason_is_put_right() -> None:
    env = TextArena(variant="ThreeCardMonte-v0")
    env.reset(seed=1)
    assert "Bad action" in str(step(env, "what?").model_dump())
    assert step(env, "what?").reward == 0.0


def test_a_message_that_crashes_the_game_is_the_models_mistake() -> None:
    env = TextArena()
    env.reset(seed=1)
    with pytest.raises(ToolError, match="cannot read this message"):
        env.play("[" + "9" * 5000 + "]")  # More digits than Python converts.
    assert step(env, f"[{env.game.game_number}]").reward == 1.0


def test_without_its_word_lists_a_game_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(ValueError, match=r"python -m nltk\.downloader words"):
        TextArena(variant="WordLadder-v0").reset(seed=1)


@pytest.mark.parametrize("game", ["Mastermind-v0", "Slitherlink-v0"])
def test_a_task_is_identified_by_what_is_shown_and_by_what_is_hidden(game: str) -> None:
    """The code is hidden; the puzzle is shown."""

    def key(seed: int) -> str:
        environment = TextArena(game)
        environment.reset(seed=seed)
        return environment.task_key()

    assert key(1) == key(1) and len({key(seed) for seed in range(1, 7)}) == 6


def test_variants_are_the_single_player_games() -> None:
    names = game_modules()
    assert {"Wordle-v0", "Sudoku-v0", "2048-v0", "Secretary-v0"} <= names.keys()
    assert not {"Chess-v0", "Klondike-v0", "TwentyQuestions-v0", "Wordle-v0-train"} & names.keys()
    with pytest.raises(ValueError, match="Sudoku-v0"):
        TextArena().reset(game_name="Sudoko-v0")


def blackjack(seed: int) -> list[str]:
    env = TextArena(variant="Blackjack-v0")
    result: Any = env.reset(seed=seed)
    texts = [result.text]
    while not result.done:
        result = step(env, "[hit]")
        texts.append(result.text)
    return texts


def test_episodes_in_threads_are_as_when_played_alone_and_leave_the_global_generator() -> None:
    alone = [blackjack(seed) for seed in range(4)]
    assert alone[0] != alone[1]
    random.seed(7)
    before = random.getstate()
    results: dict[int, list[str]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: results.update({seed: blackjack(seed)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[seed] for seed in range(4)] == alone
    assert random.getstate() == before


def seeded_digest() -> str:
    texts = []
    for game in ("Secretary-v0", "2048-v0", "Crosswords-v0", "Sudoku-v0-very-easy"):
        env = TextArena(variant=game)
        texts += [env.reset(seed=5).text, env.play("[continue]").text]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def test_a_seed_gives_the_same_episode_in_another_process_and_games_print_nothing(
    tmp_path: Path,
) -> None:
    program = "from envs.test_textarena import seeded_digest; print(seeded_digest())"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout == seeded_digest() + "\n"


def test_a_typed_client_plays_a_served_game() -> None:
    with serving(SPEC) as served, TextArenaEnv(base_url=served.url).sync() as client:
        result = client.reset(seed=4, game_name="GuessTheNumber-v0")
        assert "Guess The Number" in result.observation.prompt
        low, high = 1, 20
        while not result.done:
            guess = (low + high) // 2
            result = client.step(TextArenaAction(message=f"[{guess}]"))
            if "higher" in result.observation.text:
                low = guess + 1
            else:
                high = guess - 1
        assert result.reward == 1.0
