from __future__ import annotations

import asyncio
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus import Episode, episodes, grpo
from ludus.data.episode import StopReason
from ludus.errors import ConfigError, RunError
from ludus.train.grpo.rewards import parse_reward_functions
from train.grpo.toy_environments import CLIMB, PICK, small_config
from train.lessons import curve

HERE = "train.grpo.test_rewards"


def brief(episode: Episode) -> float:
    return -float(episode.turns)


async def climbing(episode: Episode) -> float | None:
    return 0.5 if "Climb" in episode.environment else None


def broken(episode: Episode) -> float:
    raise KeyError("nothing there")


def leaving(episode: Episode) -> float:
    sys.exit("enough")


async def leaving_later(episode: Episode) -> float:
    await asyncio.sleep(0)
    sys.exit("enough")


def endless(episode: Episode) -> float:
    return math.inf


class _Judge:
    """Is asked, and answers later."""

    async def __call__(self, episode: Episode) -> float:
        await asyncio.sleep(0)
        return 0.25


judge = _Judge()
GIVEN: list[Any] = []


def given(episode: Episode) -> Any:
    return GIVEN[-1]


def an_episode(**more: object) -> Episode:
    usual = {
        "episode_id": "x", "stop_reason": StopReason.DONE, "environment": PICK, "group_id": "g",
        "reward": 1.0, "turns": 2,
    }  # fmt: skip
    return Episode.model_validate({**usual, **more})


def scored(texts: list[str], episode: Episode) -> Episode:
    return asyncio.run(parse_reward_functions(texts).score(episode))


def test_rewards_are_summed_by_weight() -> None:
    made = scored([f"{HERE}:brief=0.25"], an_episode())
    assert made.reward == 0.5
    assert made.rewards == {PICK: 1.0, "brief": -2.0}


def test_none_leaves_a_function_out_of_the_sum() -> None:
    made = scored([f"{HERE}:climbing"], an_episode())
    assert made.reward == 1.0 and "climbing" not in made.rewards
    assert scored([f"{HERE}:climbing"], an_episode(environment=CLIMB)).reward == 1.5


def test_broken_episodes_stay_unscored() -> None:
    episode = an_episode(stop_reason=StopReason.BROKEN, reward=None)
    assert scored([f"{HERE}:brief"], episode) == episode


@pytest.mark.parametrize(
    "number",
    [True, Fraction(1, 4), np.float32(0.5), np.int64(3), np.array(2.0), torch.tensor(0.5)],
    ids=repr,
)
def test_scalars_of_all_libraries_are_accepted(
    number: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{HERE}.GIVEN", [number])
    made = scored([f"{HERE}:given"], an_episode()).rewards["given"]
    assert made == float(number) and type(made) is float


@pytest.mark.parametrize("thing", ["1.0", [1.0], np.ones(1), torch.ones(1), 1j, np.nan], ids=repr)
def test_other_values_raise(thing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HERE}.GIVEN", [thing])
    with pytest.raises(RunError, match="which is no number"):
        scored([f"{HERE}:given"], an_episode())


def test_an_awaitable_result_is_awaited() -> None:
    assert scored([f"{HERE}:judge"], an_episode()).rewards["judge"] == 0.25


def test_the_environments_own_parts_are_never_summed() -> None:
    rewards = parse_reward_functions([f"{HERE}:climbing", f"{HERE}:brief=0.25"])
    own = {"climbing": 7.0, "brief": 8.0, PICK: 9.0, "speed": 0.1}
    made = asyncio.run(rewards.score(an_episode(rewards=own)))
    parts = rewards.parts(made)
    assert parts == {PICK: 1.0, "brief": -2.0}
    weights = rewards.weights([PICK])
    assert made.reward == sum(weights[name] * value for name, value in parts.items()) == 0.5
    apart = {f"{PICK}/{name}": own[name] for name in ("climbing", "brief", PICK)}
    assert made.rewards == {**parts, **apart, "speed": 0.1}


def test_a_function_with_the_name_of_an_environment_raises() -> None:
    with pytest.raises(ConfigError, match="brief has the name of an environment"):
        parse_reward_functions([f"{HERE}:brief"]).weights(["wordle", "brief"])


def test_functions_with_the_same_name_are_named_with_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_rewards.py").write_text("def brief(episode):\n    return 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    texts = [f"{HERE}:brief", "other_rewards:brief=0.5", f"{HERE}:climbing"]
    rewards = parse_reward_functions(texts)
    made = asyncio.run(rewards.score(an_episode()))
    assert rewards.parts(made) == {PICK: 1.0, f"{HERE}:brief": -2.0, "other_rewards:brief": 3.0}
    assert made.reward == 1.0 - 2.0 + 1.5
    names = [PICK, f"{HERE}:brief", "other_rewards:brief", "climbing"]
    assert list(rewards.weights([PICK])) == names
    with pytest.raises(ConfigError, match=f"--reward {HERE}:brief is given twice"):
        parse_reward_functions([f"{HERE}:brief", f"{HERE}:brief=2"])


@pytest.mark.parametrize("name", ["broken", "leaving", "leaving_later", "endless"])
def test_a_failing_function_is_named(name: str) -> None:
    with pytest.raises(RunError, match=f"reward function {name}"):
        scored([f"{HERE}:{name}"], an_episode())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brief", "names no function"),
        ("no.such.module:f", "cannot be imported"),
        (f"{HERE}:nobody", "has no function nobody"),
        (f"{HERE}:HERE", "is no function"),
        (f"{HERE}:brief=much", "no weight"),
    ],
)
def test_invalid_reward_functions_raise(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_reward_functions([text])


def test_a_mixture_logs_rewards_per_environment_and_never_nan(model: Path, tmp_path: Path) -> None:
    settings = small_config(
        steps=3,
        groups=2,
        reward_funcs=(f"{HERE}:climbing=2", f"{HERE}:brief=0.1"),
        max_episode_tokens=96,
    )
    grpo(f"{PICK}=0.5,{CLIMB}=0.5", str(model), tmp_path / "out", settings)
    log = curve(tmp_path / "out")
    assert "NaN" not in (tmp_path / "out" / "log.jsonl").read_text()
    assert all(value is not None for line in log for value in line.values())
    means = {f"rewards/{name}/mean" for name in (PICK, CLIMB, "climbing", "brief")}
    assert means <= set().union(*log)
    # One environment at a time: what is not there is not told.
    alone = [line for line in log if f"rewards/{CLIMB}/mean" not in line]
    assert all("rewards/climbing/mean" not in line for line in alone)
    for episode in episodes(tmp_path / "out" / "episodes.jsonl"):
        names = [tool["function"]["name"] for tool in episode.tools]
        assert names == (["climb"] if "Climb" in episode.environment else ["pick"])
