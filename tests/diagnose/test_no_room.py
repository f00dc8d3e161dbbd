"""Tasks and conversations that are longer than the model can read."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.runs import Sample, level
from ludus.data.episode import Fault, StopReason
from ludus.diagnose import Diagnosis, diagnose
from ludus.diagnose.episode_stats import EpisodeStats, TokenLimits, group_episodes

_256 = TokenLimits(episode=256)
UNREADABLE = Fault(
    kind="RequestRefused",
    where="model",
    message="The prompt has 20,268 tokens, and the model reads 8,192 at most.",
)


def without_room(sample: Sample, every: int) -> tuple[list[dict[str, Any]], list[EpisodeStats]]:
    """All but every so many tasks cannot be read, as the log and the episodes tell it."""
    lines, attempts = sample.draw()
    for line in lines:
        fitting = [one for one in attempts if one.step == line["step"] and _fits(one, every)]
        line["equal"] = 1 - (1 - line["equal"]) * len(fitting) / (sample.groups * sample.size)
        line["unscored"] = 1 - len(fitting) / (sample.groups * sample.size)
    broken: dict[str, Any] = {
        "stop_reason": "broken",
        "reward": None,
        "environment_reward": None,
        "fault": UNREADABLE,
    }
    return lines, [one if _fits(one, every) else one._replace(**broken) for one in attempts]


def _fits(one: EpisodeStats, every: int) -> bool:
    return int(one.task, 16) % every == 0


def judged(sample: Sample, every: int) -> Diagnosis:
    lines, attempts = without_room(sample, every)
    return diagnose(lines, group_episodes(attempts))


def test_tasks_that_cannot_be_read_are_told_with_their_fault_and_no_server_is_blamed() -> None:
    first = judged(Sample(), every=2).verdicts[0]
    assert first.name == "unscored episodes" and first.finding.startswith("50 % of episodes")
    assert first.finding.endswith("The prompt has 20,268 tokens, and the model reads 8,192 at most")
    assert "`ludus show RUN " in first.advice and "server" not in first.advice


@pytest.mark.parametrize("success", [0.5, 0.18])
def test_groups_that_could_not_be_played_are_not_called_equal(success: float) -> None:
    """Three of four: the log counts them as equal, but no other difficulty would mend them."""
    found = judged(Sample({"wordle": level(success)}, luck=0.02), every=4)
    assert not {"dead groups", "too hard"} & {verdict.name for verdict in found.verdicts}


@pytest.mark.parametrize(
    ("sampled", "advice"), [(100, "`max_turns`"), (256, "`max_episode_tokens` to 1024")]
)
def test_a_full_context_is_not_mended_by_more_tokens(sampled: int, advice: str) -> None:
    lines, attempts = Sample(figures={"cut_off": level(0.5)}).draw()
    cut: dict[str, Any] = {"stop_reason": StopReason.MAX_TOKENS.value, "sampled_tokens": sampled}
    found = diagnose(lines, group_episodes((one._replace(**cut) for one in attempts), limits=_256))
    (verdict,) = (each for each in found.verdicts if each.name == "cut off")
    assert advice in verdict.advice
    assert ("the model's context" in verdict.finding) is (sampled < 256)
    assert ("`max_episode_tokens`" in verdict.advice) is (sampled == 256)
