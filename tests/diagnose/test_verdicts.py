"""Each verdict applies where it should, and nowhere else."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from diagnose.runs import Curve, Sample, level, ramp
from ludus.diagnose import Diagnosis, Verdict, diagnose, format_diagnosis
from ludus.diagnose.detectors import SaturationDetector
from ludus.diagnose.episode_stats import RunEpisodes, TokenLimits, group_episode_stats
from ludus.diagnose.step_log import StepLog


def diagnose_run(sample: Sample) -> Diagnosis:
    return diagnose(*sample.read())


def verdicts(sample: Sample) -> list[str]:
    return [verdict.name for verdict in diagnose_run(sample).verdicts]


def find_verdict(name: str, sample: Sample) -> Verdict:
    (found_verdicts,) = (
        verdict for verdict in diagnose_run(sample).verdicts if verdict.name == name
    )
    return found_verdicts


def single_environment(curve: Curve, **more: Any) -> Sample:
    return Sample({"wordle": curve}, **more)


@pytest.mark.parametrize(
    "sample",
    [
        Sample(),
        Sample(steps=30),
        Sample(groups=2, size=4),
        Sample(worth=(-1.0, 3.0)),
        single_environment(ramp((0.0, 0.3), (0.4, 0.85), (1.0, 0.85))),
        single_environment(ramp((0.0, 0.05), (0.5, 0.7), (1.0, 0.8))),
        single_environment(ramp((0.0, 0.3), (1.0, 0.5)), steps=300, groups=4),
    ],
    ids=["usual", "short", "few", "other scale", "plateau", "from little", "slow"],
)
def test_healthy_run_has_only_the_learned_verdict(sample: Sample) -> None:
    for seed in range(2):
        sample.seed = seed
        assert verdicts(sample) == ["learned"]


def test_constant_run_rarely_has_a_change_verdict() -> None:
    """A 95 % interval is wrong once in twenty times, so that four of twenty would be too many."""
    seeds = (single_environment(level(0.5), luck=2.0, steps=60, seed=seed) for seed in range(20))
    moved = {"learned", "past saturation", "getting worse"}
    assert sum(bool(moved & set(verdicts(sample))) for sample in seeds) <= 3


def test_learned_reports_the_delta_with_its_interval() -> None:
    diagnosis = diagnose_run(Sample())
    (verdict,), change = diagnosis.verdicts, diagnosis.reward
    assert verdict.kind == "good" and change is not None and change.interval is not None
    delta, low, high = (f"{value:+.3f}" for value in (change.delta, *change.interval))
    assert verdict.finding == f"reward rose by {delta} (95 % interval {low} to {high})"


def test_rising_reward_advises_more_steps() -> None:
    verdict = find_verdict("learned", single_environment(ramp((0.0, 0.2), (0.7, 0.3), (1.0, 0.8))))
    assert "still rising" in verdict.finding and "`steps`" in verdict.advice


@pytest.mark.parametrize(("start", "easy"), [(0.97, True), (0.8, False)])
def test_high_initial_reward_is_too_easy(start: float, easy: bool) -> None:
    sample = single_environment(level(start), luck=0.02)
    assert ("too easy" in verdicts(sample)) is easy
    if easy:
        assert verdicts(sample) == ["too easy"]
        assert "started at 0.9" in find_verdict("too easy", sample).finding


def test_run_without_successes_is_too_hard() -> None:
    sample = single_environment(level(0.02), luck=0.02)
    lines, _ = sample.draw()
    assert verdicts(sample) == ["too hard"]
    verdict, equal = (
        find_verdict("too hard", sample),
        fmean(line["zero_variance"] for line in lines),
    )
    assert f"{100 * equal:.0f} % of groups" in verdict.finding and "`task`" in verdict.advice


def test_low_rewards_with_variance_are_not_too_hard() -> None:
    assert verdicts(single_environment(level(0.18), luck=0.02)) == ["no progress"]


def test_low_but_rising_reward_is_not_too_hard() -> None:
    assert verdicts(single_environment(ramp((0.0, 0.01), (1.0, 0.2)), luck=0.01)) == ["learned"]


def test_invalid_calls_make_format_the_bottleneck() -> None:
    sample = single_environment(level(0.0), luck=0.01, figures={"format": level(0.1)})
    assert verdicts(sample) == ["format is the bottleneck"]
    verdict = find_verdict("format is the bottleneck", sample)
    assert "10 % of episodes" in verdict.finding
    for command in ("ludus collect", "ludus curate", "ludus train sft"):
        assert f"`{command}`" in verdict.advice


def test_format_that_is_learned_is_no_bottleneck() -> None:
    figures = {"format": ramp((0.0, 0.2), (0.4, 0.9), (1.0, 0.9))}
    assert verdicts(single_environment(ramp((0.0, 0.02), (1.0, 0.6)), figures=figures)) == [
        "learned"
    ]


def test_wasted_steps_after_saturation_are_a_problem() -> None:
    entropy = ramp((0.0, 0.6), (0.3, 0.2), (1.0, 0.5))
    sample = single_environment(
        ramp((0.0, 0.3), (0.3, 1.0), (1.0, 1.0)), luck=0.02, figures={"entropy": entropy}
    )
    judge = SaturationDetector()
    assert verdicts(sample) == ["saturated", "learned"]
    verdict = find_verdict("saturated", sample)
    step = next(line["step"] for line in sample.draw()[0] if judge.update(line))
    assert verdict.kind == "problem" and 50 <= step <= 80
    assert f"ended it at step {step}: reward has been at 0.9" in verdict.finding
    assert f"{150 - step} more steps brought nothing" in verdict.finding
    assert f"`steps` set to {step} or with `early_stop`" in verdict.advice


def test_run_that_ends_at_saturation_gets_a_note() -> None:
    verdict = find_verdict(
        "saturated",
        single_environment(ramp((0.0, 0.3), (0.8, 1.0), (1.0, 1.0)), steps=100, luck=0.01),
    )
    assert verdict.kind == "note" and "ended when it should" in verdict.advice


def test_fall_after_a_rise_is_past_saturation() -> None:
    sample = single_environment(ramp((0.0, 0.3), (0.4, 0.9), (0.6, 0.9), (1.0, 0.6)))
    assert verdicts(sample) == ["past saturation", "learned"]
    verdict = find_verdict("past saturation", sample)
    best = StepLog.from_entries(sample.draw()[0]).best_window()
    assert best is not None and 45 <= best.first < best.last <= 105
    final = fmean(line["reward"] for line in sample.draw()[0][-15:])
    assert f"best at steps {best.first} to {best.last}" in verdict.finding
    assert f"fell to {final:.3f} by step 150" in verdict.finding
    assert f"`steps` set to {best.last} " in verdict.advice and "checkpoint" in verdict.advice


def test_fall_without_a_rise_is_getting_worse() -> None:
    assert verdicts(single_environment(ramp((0.0, 0.6), (1.0, 0.3)))) == ["getting worse"]


def test_zero_variance_throughout_means_dead_groups() -> None:
    sample = single_environment(level(0.5), luck=2.0)
    verdict, equal = (
        find_verdict("dead groups", sample),
        [line["zero_variance"] for line in sample.draw()[0]],
    )
    assert verdict.finding.startswith(f"{100 * fmean(equal):.0f} % of groups")
    assert "`group_size`" in verdict.advice


def test_saturated_run_has_no_dead_groups() -> None:
    curve = ramp((0.0, 0.3), (0.2, 1.0), (1.0, 1.0))
    assert "dead groups" not in verdicts(single_environment(curve, luck=0.02))


@pytest.mark.parametrize(("part", "cut"), [(0.25, True), (0.15, False)])
def test_episodes_at_a_token_limit_are_cut_off(part: float, cut: bool) -> None:
    sample = Sample(figures={"cut_off": level(part)})
    assert verdicts(sample) == (["cut off", "learned"] if cut else ["learned"])


def cut_short(part: float, steps: int, **more: Any) -> tuple[list[dict[str, Any]], RunEpisodes]:
    """A run in which most episodes stop at 16 tokens before they have called anything."""
    lines, attempts = single_environment(
        level(0.0), luck=0.0, steps=steps, figures={"cut_off": level(part)}
    ).draw()
    for line in lines:
        line.update(more)
        if part == 1:
            del line["format"]
    ends: list[dict[str, Any]] = [
        {"stop_reason": "max_tokens", "sampled_tokens": 16},
        {"sampled_tokens": 12},
    ]
    told = (one._replace(**ends[at % 10 >= 10 * part]) for at, one in enumerate(attempts))
    return lines, group_episode_stats(told, limits=TokenLimits(episode=16))


@pytest.mark.parametrize("steps", [3, 40])
def test_too_small_token_limit_is_the_first_verdict(
    steps: int,
) -> None:
    found_verdicts = diagnose(*cut_short(1.0, steps)).verdicts
    assert [verdict.name for verdict in found_verdicts] == ["cut off", "too short to tell"][
        : 1 + (steps < 10)
    ]
    assert (
        "100 % of episodes" in found_verdicts[0].finding
        and "16 tokens" in found_verdicts[0].finding
    )
    assert "`max_episode_tokens` to 128" in found_verdicts[0].advice


def test_format_of_complete_episodes_is_judged_beside_cut_off_ones() -> None:
    first, second = diagnose(*cut_short(0.6, 40, format=0.1)).verdicts
    assert (first.name, second.name) == ("cut off", "format is the bottleneck")
    assert "complete replies" in second.finding


def test_cut_off_considers_only_the_last_window() -> None:
    assert verdicts(Sample(figures={"cut_off": ramp((0.0, 0.9), (0.5, 0.0), (1.0, 0.0))})) == [
        "learned"
    ]


def test_unscored_verdict_names_an_episode() -> None:
    verdict = find_verdict("unscored episodes", Sample(faults=0.1))
    assert verdict.finding.startswith("10 % of episodes")
    assert "`ludus show RUN 1a2b3c4d-" in verdict.advice
    assert verdicts(Sample(faults=0.005)) == ["learned"]


def test_run_without_scores_is_only_unscored() -> None:
    diagnosis = diagnose_run(Sample(faults=1.0))
    assert diagnosis.reward is None
    assert [verdict.name for verdict in diagnosis.verdicts] == ["unscored episodes"]


def test_early_loss_of_entropy_with_low_reward_is_a_collapse() -> None:
    gone = {"entropy": ramp((0.0, 0.5), (0.2, 0.005), (1.0, 0.004))}
    assert verdicts(single_environment(level(0.3), figures=gone)) == ["entropy collapse"]
    good = single_environment(ramp((0.0, 0.3), (0.5, 0.8), (1.0, 0.85)), figures=gone)
    assert verdicts(good) == ["learned"], "a policy may be sure because it is right"


def test_low_initial_entropy_is_not_a_collapse() -> None:
    low = {"entropy": level(0.0039)}
    assert verdicts(single_environment(level(0.3), figures=low)) == ["low entropy"]
    slowly = {"entropy": ramp((0.0, 0.03), (0.4, 0.018), (1.0, 0.018))}
    assert verdicts(single_environment(level(0.3), figures=slowly)) == ["no progress"]


def test_collapse_uses_surprise_if_logged() -> None:
    """Those that are trained on stay uncertain to the last."""
    gone = {"sampled_nll": ramp((0.0, 0.5), (0.2, 0.005), (1.0, 0.004)), "entropy": level(0.5)}
    assert verdicts(single_environment(level(0.3), figures=gone)) == ["entropy collapse"]


def test_missing_loss_is_unstable() -> None:
    lines, played = Sample().read()
    del lines[49]["loss"]
    verdict = diagnose(lines, played).verdicts[0]
    assert "1 step (50)" in verdict.finding
    lines[49] |= {"trained": 0.0}
    assert diagnose(lines, played).verdicts[0].name == "learned", "there was nothing to learn from"


@pytest.mark.parametrize(("steps", "short"), [(1, True), (9, True), (10, False)])
def test_few_steps_are_too_short_to_tell(steps: int, short: bool) -> None:
    assert (verdicts(Sample(steps=steps)) == ["too short to tell"]) is short


def test_each_environment_of_a_mixture_has_its_own_verdicts() -> None:
    success = {"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.98), "chess": level(0.0)}
    sample = Sample(success, luck=0.03, groups=9)
    assert verdicts(sample) == ["too hard: chess", "too easy: catch", "learned"]


def test_text_has_changes_then_verdicts() -> None:
    sample = Sample({"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.5)})
    reward, catch, wordle, verdict = format_diagnosis(diagnose_run(sample))
    assert reward.startswith("reward: ") and " (95 % interval +" in reward
    assert catch.startswith("catch: ") and wordle.startswith("wordle: ")
    assert verdict.startswith("learned: reward rose by +") and verdict.endswith(".")


def test_empty_log_has_no_verdicts() -> None:
    assert diagnose([]).verdicts == () and format_diagnosis(diagnose([])) == []


def test_held_out_rewards_include_step_0() -> None:
    lines, played = Sample(steps=20).read()
    held = [{"step": 0, "eval_reward": 0.2}, {"eval_reward": 0.9}, {"step": 20, "eval_reward": 0.6}]
    diagnosis = diagnose([held[0], *lines, *held[1:]], played)
    assert diagnosis.held_out == ((0, 0.2), (20, 0.6)) and diagnosis.steps == 20
