"""Runs with prompts or conversations beyond the model's context."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.runs import Sample, level
from ludus.data.episode import EpisodeFault, StopReason
from ludus.diagnose import Diagnosis, diagnose
from ludus.diagnose.episode_stats import EpisodeStats, TokenLimits, group_episode_stats

LIMITS = TokenLimits(episode=256)
UNREADABLE = EpisodeFault(
    kind="RequestRefused",
    where="model",
    message="The prompt has 20,268 tokens, and the model reads 8,192 at most.",
)


def with_unreadable_tasks(
    sample: Sample, every: int
) -> tuple[list[dict[str, Any]], list[EpisodeStats]]:
    """Let only one in `every` tasks fit the context."""
    lines, attempts = sample.draw()
    for line in lines:
        fitting = [one for one in attempts if one.step == line["step"] and _is_readable(one, every)]
        line["zero_variance"] = 1 - (1 - line["zero_variance"]) * len(fitting) / (
            sample.groups * sample.size
        )
        line["unscored"] = 1 - len(fitting) / (sample.groups * sample.size)
    broken: dict[str, Any] = {
        "stop_reason": "broken",
        "reward": None,
        "fault": UNREADABLE,
    }
    return lines, [one if _is_readable(one, every) else one._replace(**broken) for one in attempts]


def _is_readable(one: EpisodeStats, every: int) -> bool:
    return int(one.task, 16) % every == 0


def diagnose_run(sample: Sample, every: int) -> Diagnosis:
    lines, attempts = with_unreadable_tasks(sample, every)
    return diagnose(lines, group_episode_stats(attempts))


def test_unscored_verdict_blames_the_model_for_prompts_beyond_its_context() -> None:
    first = diagnose_run(Sample(), every=2).verdicts[0]
    assert first.name == "unscored episodes" and first.finding.startswith("50 % of episodes")
    assert "20,268 tokens" in first.finding and "8,192" in first.finding
    assert "`ludus show RUN " in first.advice and "server" not in first.advice


@pytest.mark.parametrize("success", [0.5, 0.18])
def test_unscored_groups_do_not_count_as_zero_variance(success: float) -> None:
    """The log counts them as equal."""
    diagnosis = diagnose_run(Sample({"wordle": level(success)}, luck=0.02), every=4)
    assert not {"dead groups", "too hard"} & {verdict.name for verdict in diagnosis.verdicts}


@pytest.mark.parametrize(
    ("sampled", "advice"), [(100, "`max_turns`"), (256, "`max_episode_tokens` to 1024")]
)
def test_full_context_advises_no_higher_token_limit(sampled: int, advice: str) -> None:
    lines, attempts = Sample(figures={"cut_off": level(0.5)}).draw()
    cut: dict[str, Any] = {"stop_reason": StopReason.MAX_TOKENS.value, "sampled_tokens": sampled}
    diagnosis = diagnose(
        lines, group_episode_stats((one._replace(**cut) for one in attempts), limits=LIMITS)
    )
    (verdict,) = (each for each in diagnosis.verdicts if each.name == "cut off")
    assert advice in verdict.advice
    assert ("the model's context" in verdict.finding) is (sampled < 256)
    assert ("`max_episode_tokens`" in verdict.advice) is (sampled == 256)
