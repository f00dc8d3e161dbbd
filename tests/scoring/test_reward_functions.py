from __future__ import annotations

import asyncio
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus import Episode
from ludus.data.episode import StopReason
from ludus.errors import ConfigError, RunError
from ludus.scoring.reward_functions import import_reward_functions
from scoring.reward_samples import HERE

PICK, CLIMB = "toys:Pick", "toys:Climb"


def build_episode(**changes: object) -> Episode:
    fields = {
        "episode_id": "x", "stop_reason": StopReason.DONE, "environment": PICK, "group_id": "g",
        "reward": 1.0, "turns": 2,
    }  # fmt: skip
    return Episode.model_validate({**fields, **changes})


def score(texts: list[str], episode: Episode) -> Episode:
    return asyncio.run(import_reward_functions(texts).score(episode))


def test_rewards_are_summed_by_weight() -> None:
    episode = score([f"{HERE}:brief=0.25"], build_episode())
    assert episode.reward == 0.5
    assert episode.rewards == {PICK: 1.0, "brief": -2.0}


def test_rewards_of_turns_stay_the_environments_own() -> None:
    episode = score([f"{HERE}:brief=0.25"], build_episode(turn_rewards=(0.75, 0.25)))
    assert (episode.reward, episode.turn_rewards) == (0.5, (0.75, 0.25))


def test_none_leaves_a_function_out_of_the_sum() -> None:
    episode = score([f"{HERE}:climbing"], build_episode())
    assert episode.reward == 1.0 and "climbing" not in episode.rewards
    assert score([f"{HERE}:climbing"], build_episode(environment=CLIMB)).reward == 1.5


def test_a_function_with_the_name_of_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="Rename"):
        score([f"{HERE}:brief"], build_episode(environment="brief"))


def test_broken_episodes_stay_unscored() -> None:
    episode = build_episode(stop_reason=StopReason.BROKEN, reward=None)
    assert score([f"{HERE}:brief"], episode) == episode


@pytest.mark.parametrize(
    "number",
    [True, Fraction(1, 4), np.float32(0.5), np.int64(3), np.array(2.0), torch.tensor(0.5)],
    ids=repr,
)
def test_scalars_of_all_libraries_are_accepted(
    number: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{HERE}.RETURNED", [number])
    reward = score([f"{HERE}:returning"], build_episode()).rewards["returning"]
    assert reward == float(number) and type(reward) is float


@pytest.mark.parametrize("thing", ["1.0", [1.0], np.ones(1), torch.ones(1), 1j, np.nan], ids=repr)
def test_other_values_raise(thing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HERE}.RETURNED", [thing])
    with pytest.raises(RunError, match="returning"):
        score([f"{HERE}:returning"], build_episode())


def test_an_awaitable_result_is_awaited() -> None:
    assert score([f"{HERE}:judge"], build_episode()).rewards["judge"] == 0.25


def test_the_environments_own_parts_are_never_summed() -> None:
    rewards = import_reward_functions([f"{HERE}:climbing", f"{HERE}:brief=0.25"])
    own = {"climbing": 7.0, "brief": 8.0, PICK: 9.0, "speed": 0.1}
    episode = asyncio.run(rewards.score(build_episode(rewards=own)))
    parts = rewards.parts(episode)
    assert parts == {PICK: 1.0, "brief": -2.0}
    weights = rewards.weights([PICK])
    assert episode.reward == sum(weights[name] * value for name, value in parts.items()) == 0.5
    apart = {f"{PICK}/{name}": own[name] for name in ("climbing", "brief", PICK)}
    assert episode.rewards == {**parts, **apart, "speed": 0.1}


def test_a_function_with_the_name_of_an_environment_raises() -> None:
    with pytest.raises(ConfigError, match="brief"):
        import_reward_functions([f"{HERE}:brief"]).weights(["wordle", "brief"])


def test_functions_with_the_same_name_are_named_with_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_rewards.py").write_text("def brief(episode):\n    return 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    texts = [f"{HERE}:brief", "other_rewards:brief=0.5", f"{HERE}:climbing"]
    rewards = import_reward_functions(texts)
    episode = asyncio.run(rewards.score(build_episode()))
    assert rewards.parts(episode) == {PICK: 1.0, f"{HERE}:brief": -2.0, "other_rewards:brief": 3.0}
    assert episode.reward == 1.0 - 2.0 + 1.5
    names = [PICK, f"{HERE}:brief", "other_rewards:brief", "climbing"]
    assert list(rewards.weights([PICK])) == names
    with pytest.raises(ConfigError, match=f"{HERE}:brief twice"):
        import_reward_functions([f"{HERE}:brief", f"{HERE}:brief=2"])


@pytest.mark.parametrize("name", ["broken", "leaving", "leaving_later", "endless"])
def test_a_failing_function_is_named(name: str) -> None:
    with pytest.raises(RunError, match=f"reward function {name}"):
        score([f"{HERE}:{name}"], build_episode())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("brief", "brief"),
        ("no.such.module:f", "no.such.module"),
        (f"{HERE}:nobody", "nobody"),
        (f"{HERE}:HERE", "HERE"),
        (f"{HERE}:brief=much", "much"),
    ],
)
def test_invalid_reward_functions_raise(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        import_reward_functions([text])


def test_a_rubric_is_one_reward_with_named_details() -> None:
    episode = score([f"{HERE}:quality=2"], build_episode(rewards={"fast": 0.5}))
    assert episode.reward == 1.0 + 2 * 0.75
    details = {"quality/solved": 1.0, "quality/fast": 0.5, "quality/calm": 1.0}
    assert episode.rewards == {"fast": 0.5, **details, "quality": 0.75, PICK: 1.0}
    rewards = import_reward_functions([f"{HERE}:quality=2"])
    assert rewards.parts(episode) == {"quality": 0.75, PICK: 1.0}


def test_a_rubric_with_an_unscored_part_is_left_out_of_the_sum() -> None:
    episode = score([f"{HERE}:quality"], build_episode())
    assert episode.reward == 1.0 and "quality" not in episode.rewards
    assert episode.rewards["quality/solved"] == 1.0


def test_the_environments_reward_can_count_less_or_nothing() -> None:
    assert score(["environment=0.5"], build_episode()).reward == 0.5
    assert score(["environment=0.5", f"{HERE}:brief"], build_episode()).reward == -1.5
    rewards = import_reward_functions(["environment=0", f"{HERE}:climbing"])
    episode = asyncio.run(rewards.score(build_episode()))
    assert episode.reward is None and episode.rewards[PICK] == 1.0
    assert rewards.weights([PICK]) == {"climbing": 1.0}
    with pytest.raises(ConfigError):
        import_reward_functions(["environment=0"]).weights([PICK])


@pytest.mark.parametrize("name", ["trl_length", "trl_async"])
def test_a_function_for_trl_is_called_with_a_batch_of_one(name: str) -> None:
    messages = [
        {"role": "user", "content": "Say something."},
        {"role": "assistant", "content": "twelve chars"},
    ]
    episode = build_episode(messages=messages, task={"bonus": 2.0})
    assert score([f"{HERE}:{name}"], episode).rewards[name] == 14.0


def test_a_function_for_trl_that_returns_no_list_is_named() -> None:
    with pytest.raises(RunError, match="trl_number"):
        score([f"{HERE}:trl_number"], build_episode())
