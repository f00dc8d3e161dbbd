from __future__ import annotations

import math
from typing import Any

import pytest

from ludus import Episode, Rubric, RubricPart, ToolCall, ToolEnvironment, tool
from ludus.agents.scripted import ScriptedAgent
from ludus.client.session import LocalSession
from ludus.data.episode import StopReason
from ludus.environment.introspection import build_env_spec
from ludus.environment.rubric import Score
from ludus.errors import ConfigError, RunError
from ludus.rollout import Assignment, run_episode

QUALITY = Rubric(
    RubricPart("correct", weight=0.8),
    RubricPart("brief", weight=0.2),
    RubricPart("safe", gate=1.0),
)


class Essay(ToolEnvironment):
    """Write an essay that a rubric scores."""

    def reset(self, *, seed: int | None = None) -> str:
        return "Write."

    @tool
    def submit(self, text: str) -> str:
        """Submit the essay.

        Args:
            text: The essay.
        """
        correct = None if text == "unreadable" else float("fact" in text)
        brief = 1.0 - len(text) / 100
        score = QUALITY.score(correct=correct, brief=brief, safe=float("rm -rf" not in text))
        return self.finish(score, "Thanks.")


def build_episode(**fields: Any) -> Episode:
    required = {"episode_id": "x", "stop_reason": StopReason.DONE, "environment": "essay"}
    return Episode.model_validate({**required, "group_id": "g", **fields})


def test_parts_are_summed_by_weight() -> None:
    score = QUALITY.score(correct=1.0, brief=0.5, safe=1)
    assert score == Score(0.9, {"correct": 1.0, "brief": 0.5, "safe": 1.0})


def test_a_failed_gate_caps_the_reward_and_keeps_the_parts() -> None:
    failed = QUALITY.score(correct=1.0, brief=0.5, safe=0.99)
    assert failed.reward == 0.0 and failed.parts["correct"] == 1.0
    rubric = Rubric(RubricPart("right"), RubricPart("typed", gate=0.5, cap=0.25, weight=1.0))
    assert rubric.score(right=1.0, typed=0.5).reward == 1.5
    assert rubric.score(right=1.0, typed=0.0).reward == 0.25
    assert rubric.score(right=0.0, typed=0.1).reward == 0.1
    assert rubric.score(right=-3.0, typed=0.0).reward == -3.0


@pytest.mark.parametrize("part", ["correct", "brief", "safe"])
def test_an_unscored_part_leaves_the_reward_unscored(part: str) -> None:
    score = QUALITY.score(**{"correct": 1.0, "brief": 1.0, "safe": 0.0, part: None})
    assert score.reward is None
    assert set(score.parts) == {"correct", "brief", "safe"} - {part}


async def test_a_stored_episode_is_scored_by_functions_and_by_reported_parts() -> None:
    async def turns(episode: Episode) -> int:
        return episode.turns

    rubric = Rubric(RubricPart("greens", weight=10), RubricPart("turns", turns, weight=-1))
    score = await rubric(build_episode(rewards={"greens": 0.5}, turns=2))
    assert score == Score(3.0, {"greens": 0.5, "turns": 2.0})
    unscored = await rubric(build_episode(turns=2))
    assert unscored == Score(None, {"turns": 2.0})


@pytest.mark.parametrize("value", ["1", math.nan, [1.0]])
async def test_a_part_that_is_no_number_is_named(value: Any) -> None:
    rubric = Rubric(RubricPart("odd", lambda episode: value))
    with pytest.raises(RunError, match="odd"):
        await rubric(build_episode())


@pytest.mark.parametrize(
    "values", [{"correct": 1.0}, {"correct": 1.0, "brief": 1.0, "safe": 1.0, "save": 1.0}]
)
def test_values_must_be_those_of_the_parts(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        QUALITY.score(**values)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (RubricPart("a"), RubricPart("a")),
        (RubricPart("a", weight=math.inf),),
        (RubricPart("a", gate=1.0),),
    ],
)
def test_a_rubric_that_cannot_score_is_refused(parts: tuple[RubricPart, ...]) -> None:
    with pytest.raises(ConfigError):
        Rubric(*parts)


@pytest.mark.parametrize(
    ("text", "reward"), [("fact", 0.8 + 0.2 * 0.96), ("fact rm -rf", 0.0), ("unreadable", None)]
)
async def test_an_environment_finishes_with_the_score_of_a_rubric(
    text: str, reward: float | None
) -> None:
    agent = ScriptedAgent(ToolCall(name="submit", arguments={"text": text}))
    async with LocalSession(build_env_spec(Essay)) as session:
        episode = await run_episode(session, agent, Assignment.of("essay"))
    assert episode.reward == (None if reward is None else pytest.approx(reward))
    assert episode.done and episode.rewards["brief"] == 1 - len(text) / 100
    assert ("correct" in episode.rewards) == (reward is not None)
