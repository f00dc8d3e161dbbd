"""Each verdict holds where it should, says its numbers, and is silent elsewhere."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from diagnose.runs import Curve, Sample, level, ramp
from ludus.diagnose import Diagnosis, SaturationDetector, Verdict, diagnose, format_diagnosis
from ludus.diagnose.episode_stats import RunEpisodes, TokenLimits, group_episodes


def judged(sample: Sample) -> Diagnosis:
    return diagnose(*sample.read())


def verdicts(sample: Sample) -> list[str]:
    return [verdict.name for verdict in judged(sample).verdicts]


def the(name: str, sample: Sample) -> Verdict:
    (found,) = (verdict for verdict in judged(sample).verdicts if verdict.name == name)
    return found


def only(curve: Curve, **more: Any) -> Sample:
    return Sample({"wordle": curve}, **more)


@pytest.mark.parametrize(
    "sample",
    [
        Sample(),
        Sample(steps=30),
        Sample(groups=2, size=4),
        Sample(worth=(-1.0, 3.0)),
        only(ramp((0.0, 0.3), (0.4, 0.85), (1.0, 0.85))),
        only(ramp((0.0, 0.05), (0.5, 0.7), (1.0, 0.8))),
        only(ramp((0.0, 0.3), (1.0, 0.5)), steps=300, groups=4),
    ],
    ids=["usual", "short", "few", "other scale", "plateau", "from little", "slow"],
)
def test_a_healthy_run_has_learned_and_that_is_all(sample: Sample) -> None:
    for seed in range(2):
        sample.seed = seed
        assert verdicts(sample) == ["learned"]


def test_a_run_that_stands_still_is_seldom_said_to_move() -> None:
    """A 95 % interval is wrong once in twenty times, so that four of twenty would be too many."""
    seeds = (only(level(0.5), luck=2.0, steps=60, seed=seed) for seed in range(20))
    moved = {"learned", "past saturation", "getting worse"}
    assert sum(bool(moved & set(verdicts(sample))) for sample in seeds) <= 3


def test_what_was_learned_is_said_in_points_with_an_interval() -> None:
    diagnosis = judged(Sample())
    (found,), change = diagnosis.verdicts, diagnosis.reward
    assert found.kind == "good" and change is not None and change.interval is not None
    delta, low, high = (f"{100 * value:+.1f}" for value in (change.delta, *change.interval))
    assert found.finding == f"reward rose by {delta} pp (95 % interval {low} to {high} pp)"


def test_a_reward_that_still_rises_asks_for_more_steps() -> None:
    found = the("learned", only(ramp((0.0, 0.2), (0.7, 0.3), (1.0, 0.8))))
    assert "still rising" in found.finding and "`steps`" in found.advice


@pytest.mark.parametrize(("start", "easy"), [(0.97, True), (0.8, False)])
def test_a_run_that_begins_near_the_best_is_too_easy(start: float, easy: bool) -> None:
    sample = only(level(start), luck=0.02)
    assert ("too easy" in verdicts(sample)) is easy
    if easy:
        assert verdicts(sample) == ["too easy"]
        assert "started at 9" in the("too easy", sample).finding


def test_a_run_without_successes_is_too_hard() -> None:
    sample = only(level(0.02), luck=0.02)
    lines, _ = sample.draw()
    assert verdicts(sample) == ["too hard"]
    found, equal = the("too hard", sample), fmean(line["equal"] for line in lines)
    assert f"{100 * equal:.0f} % of groups" in found.finding and "`task`" in found.advice


def test_low_rewards_that_differ_within_groups_are_not_too_hard() -> None:
    assert verdicts(only(level(0.18), luck=0.02)) == ["no progress"]


def test_a_low_reward_that_rises_is_not_too_hard() -> None:
    assert verdicts(only(ramp((0.0, 0.01), (1.0, 0.2)), luck=0.01)) == ["learned"]


def test_without_valid_calls_the_format_is_the_bottleneck() -> None:
    sample = only(level(0.0), luck=0.01, figures={"format": level(0.1)})
    assert verdicts(sample) == ["format is the bottleneck"]
    found = the("format is the bottleneck", sample)
    assert "10 % of episodes" in found.finding
    for command in ("ludus collect", "ludus curate", "ludus train sft"):
        assert f"`{command}`" in found.advice


def test_a_format_that_is_learned_on_the_way_is_no_bottleneck() -> None:
    figures = {"format": ramp((0.0, 0.2), (0.4, 0.9), (1.0, 0.9))}
    assert verdicts(only(ramp((0.0, 0.02), (1.0, 0.6)), figures=figures)) == ["learned"]


def test_a_run_that_goes_on_after_its_best_is_saturated() -> None:
    entropy = ramp((0.0, 0.6), (0.3, 0.2), (1.0, 0.5))
    sample = only(ramp((0.0, 0.3), (0.3, 1.0), (1.0, 1.0)), luck=0.02, figures={"entropy": entropy})
    judge = SaturationDetector()
    assert verdicts(sample) == ["saturated", "learned"]
    found = the("saturated", sample)
    step = next(line["step"] for line in sample.draw()[0] if judge.update(line))
    assert found.kind == "problem" and 50 <= step <= 80
    assert f"ended it at step {step}: reward has been at 0.9" in found.finding
    assert f"{150 - step} more steps brought nothing" in found.finding
    assert f"`steps` set to {step} or with `early_stop`" in found.advice


def test_a_run_that_ends_when_it_is_saturated_did_well() -> None:
    found = the("saturated", only(ramp((0.0, 0.3), (0.8, 1.0), (1.0, 1.0)), steps=100, luck=0.01))
    assert found.kind == "note" and "ended when it should" in found.advice


def test_a_reward_that_falls_from_its_plateau_is_past_saturation() -> None:
    sample = only(ramp((0.0, 0.3), (0.4, 0.9), (0.6, 0.9), (1.0, 0.6)))
    assert verdicts(sample) == ["past saturation", "learned"]
    found, best = the("past saturation", sample), judged(sample).best
    assert best is not None and 45 <= best.first < best.last <= 105
    final = fmean(line["reward"] for line in sample.draw()[0][-15:])
    assert f"best at steps {best.first} to {best.last}" in found.finding
    assert f"fell to {100 * final:.1f} % by step 150" in found.finding
    assert f"`steps` set to {best.last} " in found.advice and "checkpoint" in found.advice


def test_a_reward_that_only_falls_is_getting_worse() -> None:
    assert verdicts(only(ramp((0.0, 0.6), (1.0, 0.3)))) == ["getting worse"]


def test_groups_that_are_equal_all_through_are_dead() -> None:
    sample = only(level(0.5), luck=2.0)
    found, equal = the("dead groups", sample), [line["equal"] for line in sample.draw()[0]]
    assert found.finding.startswith(f"{100 * fmean(equal):.0f} % of groups")
    assert "`zero_variance_groups`" in found.advice and "`group_size`" in found.advice


def test_the_equal_groups_of_a_saturated_run_are_not_called_dead() -> None:
    curve = ramp((0.0, 0.3), (0.2, 1.0), (1.0, 1.0))
    assert "dead groups" not in verdicts(only(curve, luck=0.02))


@pytest.mark.parametrize(("part", "cut"), [(0.25, True), (0.15, False)])
def test_replies_that_end_at_a_limit_are_cut_off(part: float, cut: bool) -> None:
    sample = Sample(figures={"cut_off": level(part)})
    assert verdicts(sample) == (["cut off", "learned"] if cut else ["learned"])


def cut_short(part: float, steps: int, **more: Any) -> tuple[list[dict[str, Any]], RunEpisodes]:
    """A run in which most episodes stop at 16 tokens before they have called anything."""
    lines, attempts = only(
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
    return lines, group_episodes(told, limits=TokenLimits(episode=16))


@pytest.mark.parametrize("steps", [3, 40])
def test_a_token_limit_that_is_too_small_is_the_first_cause_and_names_its_option(
    steps: int,
) -> None:
    found = diagnose(*cut_short(1.0, steps)).verdicts
    assert [verdict.name for verdict in found] == ["cut off", "too short to tell"][
        : 1 + (steps < 10)
    ]
    assert "100 % of episodes" in found[0].finding and "16 tokens" in found[0].finding
    assert "`max_episode_tokens` to 128" in found[0].advice


def test_replies_that_are_complete_tell_how_long_they_are_and_are_judged_by_their_form() -> None:
    first, second = diagnose(*cut_short(0.6, 40, format=0.1)).verdicts
    assert (first.name, second.name) == ("cut off", "format is the bottleneck")
    assert "12 tokens at the median" in first.finding and "complete replies" in second.finding


def test_long_replies_that_become_short_are_not_cut_off() -> None:
    assert verdicts(Sample(figures={"cut_off": ramp((0.0, 0.9), (0.5, 0.0), (1.0, 0.0))})) == [
        "learned"
    ]


def test_faults_are_told_with_an_episode_to_look_at() -> None:
    found = the("unscored episodes", Sample(faults=0.1))
    assert found.finding.startswith("10 % of episodes")
    assert "`ludus show RUN 1a2b3c4d-" in found.advice
    assert verdicts(Sample(faults=0.005)) == ["learned"]


def test_a_run_without_any_score_is_only_unscored() -> None:
    found = judged(Sample(faults=1.0))
    assert found.reward is None and found.best is None
    assert [verdict.name for verdict in found.verdicts] == ["unscored episodes"]


def test_entropy_that_is_gone_early_with_little_reward_has_collapsed() -> None:
    gone = {"entropy": ramp((0.0, 0.5), (0.2, 0.005), (1.0, 0.004))}
    assert verdicts(only(level(0.3), figures=gone)) == ["entropy collapse"]
    good = only(ramp((0.0, 0.3), (0.5, 0.8), (1.0, 0.85)), figures=gone)
    assert verdicts(good) == ["learned"], "a policy may be sure because it is right"


def test_an_entropy_that_was_low_from_the_start_has_not_collapsed() -> None:
    low = {"entropy": level(0.0039)}
    assert verdicts(only(level(0.3), figures=low)) == ["low entropy"]
    slowly = {"entropy": ramp((0.0, 0.03), (0.4, 0.018), (1.0, 0.018))}
    assert verdicts(only(level(0.3), figures=slowly)) == ["no progress"]


def test_groups_at_different_tasks_are_noted() -> None:
    sample = Sample(figures={"unseeded": level(0.5)})
    found = judged(sample).verdicts
    assert [verdict.name for verdict in found] == ["unseeded groups", "learned"]
    assert found[0].kind == "note"


def test_entropy_is_that_of_all_episodes_where_the_log_has_it() -> None:
    """Those that are trained on stay uncertain to the last."""
    gone = {"surprise": ramp((0.0, 0.5), (0.2, 0.005), (1.0, 0.004)), "entropy": level(0.5)}
    assert verdicts(only(level(0.3), figures=gone)) == ["entropy collapse"]


def test_spikes_of_the_gradient_are_unstable() -> None:
    lines, played = Sample().read()
    for step in (40, 80, 120):
        assert [found.name for found in diagnose(lines, played).verdicts] == ["learned"]
        lines[step - 1]["grad_norm"] = 50.0
    found = diagnose(lines, played).verdicts[0]
    assert found.name == "unstable" and "3 steps (40, 80, 120) spiked" in found.finding


def test_a_loss_that_is_no_number_is_unstable() -> None:
    lines, played = Sample().read()
    del lines[49]["loss"]
    found = diagnose(lines, played).verdicts[0]
    assert "1 step (50)" in found.finding
    lines[49] |= {"trained": 0.0}
    assert diagnose(lines, played).verdicts[0].name == "learned", "there was nothing to learn from"


@pytest.mark.parametrize(("steps", "short"), [(1, True), (9, True), (10, False)])
def test_a_few_steps_are_too_short_to_tell(steps: int, short: bool) -> None:
    assert (verdicts(Sample(steps=steps)) == ["too short to tell"]) is short


def test_each_environment_of_a_mix_is_judged_by_itself() -> None:
    success = {"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.98), "chess": level(0.0)}
    sample = Sample(success, luck=0.03, groups=9)
    assert verdicts(sample) == ["too hard: chess", "too easy: catch", "learned"]


def test_the_words_are_the_changes_and_then_the_verdicts() -> None:
    sample = Sample({"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.5)})
    reward, catch, wordle, verdict = format_diagnosis(judged(sample))
    assert reward.startswith("reward: ") and " pp (95 % interval +" in reward
    assert catch.startswith("catch: ") and wordle.startswith("wordle: ")
    assert verdict.startswith("learned: reward rose by +") and verdict.endswith(".")


def test_an_empty_log_has_no_verdicts() -> None:
    assert diagnose([]).verdicts == () and format_diagnosis(diagnose([])) == []


def test_held_out_tasks_before_the_first_step_are_told_with_the_later_ones() -> None:
    lines, played = Sample(steps=20).read()
    held = [{"step": 0, "eval_reward": 0.2}, {"eval_reward": 0.9}, {"step": 20, "eval_reward": 0.6}]
    found = diagnose([held[0], *lines, *held[1:]], played)
    assert found.held_out == ((0, 0.2), (20, 0.6)) and found.steps == 20
