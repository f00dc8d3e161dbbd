"""Rules that judge a GRPO run: failures, progress, and advice.

Pure functions, each of which yields the verdicts that apply. In a mixture, the difficulty of each
environment is judged separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ludus.data.training_log import entropy_key, metric, metric_values, step_number
from ludus.diagnose.detectors import SaturationDetector
from ludus.diagnose.episode_stats import RunEpisodes, zero_variance_share
from ludus.diagnose.reward_change import (
    MIN_DELTA,
    RewardChange,
    first_and_last_groups,
    format_change_interval,
    format_reward,
    format_reward_change,
    format_share,
)
from ludus.diagnose.step_log import BucketStats, StepLog, logged_zero_variance_share, metric_mean


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, with the numbers behind it, and what to change."""

    name: str
    kind: Literal["problem", "note", "good"]
    finding: str
    advice: str


problem = partial(Verdict, kind="problem")
note = partial(Verdict, kind="note")
good = partial(Verdict, kind="good")


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What the rules judge by."""

    log: StepLog
    episodes: RunEpisodes
    change: RewardChange
    environment_changes: tuple[RewardChange, ...]
    """The change of each environment's reward; empty unless several were trained on."""
    early_stop: tuple[int, str] | None
    """The step at which `early_stop` would have ended the run, and why."""

    def mean_at_start(self, key: str) -> float | None:
        return metric_mean(self.log.first_window, key)

    def mean_at_end(self, key: str) -> float | None:
        return metric_mean(self.log.last_window, key)


Rule = Callable[[RunEvidence], Iterable[Verdict]]

MIN_LOGGED_STEPS = 10
"""Logged steps needed to judge learning: the first five are compared with the last five."""


def apply_rules(
    log: StepLog,
    episodes: RunEpisodes,
    change: RewardChange | None,
    parts: Sequence[RewardChange],
    buckets: Sequence[BucketStats],
) -> Iterator[Verdict]:
    """Yield the verdicts of the rules that apply, in the order in which to act on them.

    `change` is None if no episode was scored; `buckets` are a curriculum's.
    """
    yield from check_cut_off(log, episodes)
    yield from check_unstable(log)
    yield from check_unscored(log, episodes)
    if change is None:
        return
    count = len(log.entries)
    if count < MIN_LOGGED_STEPS:
        yield note(
            "too short to tell",
            finding=f"{count} {'step' if count == 1 else 'steps'} with rewards logged, "
            f"{MIN_LOGGED_STEPS} are needed: the first five are compared with the last five",
            advice="let it continue, or train for more `steps`",
        )
        return
    environments = episodes.environments if len(episodes.environments) > 1 else ()
    detector = SaturationDetector()
    reasons = ((step_number(entry), detector.update(entry)) for entry in log.entries)
    run = RunEvidence(
        log,
        episodes,
        change,
        tuple(part for part in parts if part.name in environments),
        next(((step, reason) for step, reason in reasons if reason is not None), None),
    )

    def apply(*rules: Rule) -> list[Verdict]:
        return [verdict for rule in rules for verdict in rule(run)]

    causes = apply(check_format)
    if buckets:
        # Without rules on the reward, whose tasks change.
        yield from [*causes, *apply(check_entropy, check_out_of_turns)]
        yield from check_curriculum(buckets)
        return
    outcome = apply(check_learned)
    if (metric_mean(log.last_window, "cut_off") or 0.0) >= MOSTLY_CUT_OFF_SHARE:
        # Low rewards and zero-variance groups follow from the limit, not from tasks or model.
        yield from [*causes, *apply(check_reward_fell), *outcome]
        return
    causes = causes or apply(check_too_hard, check_too_easy)
    effects = apply(check_reward_fell, check_entropy)
    # Tasks that are too easy or too hard have zero-variance groups for that very reason.
    if not causes:
        effects += apply(check_dead_groups)
    if not causes or run.environment_changes:
        effects += apply(check_saturated)
    if not (causes or effects or outcome):
        outcome = apply(check_no_progress)
    yield from [*causes, *effects, *apply(check_out_of_turns), *outcome]


MAX_LIMITED_SHARE = 0.2
"""Share of episodes ended by a limit from which on the limit, and not the task, is scored."""
MOSTLY_CUT_OFF_SHARE = 0.5
"""Share of cut-off episodes from which on rewards say more about the limit than the model."""
MIN_ADVISED_TOKENS = 128
_RAMBLING_CAVEAT = "unless the model rambles: then a warm start teaches it to stop"


def check_cut_off(log: StepLog, episodes: RunEpisodes) -> Iterator[Verdict]:
    share = metric_mean(log.last_window, "cut_off")
    if share is None or share < MAX_LIMITED_SHARE:
        return
    cause = max(episodes.cut_off_by, key=episodes.cut_off_by.__getitem__, default="episode")
    if cause == "context":
        limit = "the end of the model's context"
        advice = (
            "use a lower `max_turns`, tasks with shorter observations (`task`), or a model with a "
            "longer context: a higher token limit does not help"
        )
    else:
        scope, argument, tokens = "an episode", "max_episode_tokens", episodes.limits.episode
        if cause == "reply":
            scope, argument, tokens = "a reply", "max_tokens", episodes.limits.reply
        limit, target = f"the token limit of {scope}", ""
        if tokens is not None:
            factor = 4 if share >= MOSTLY_CUT_OFF_SHARE else 2
            limit = f"the limit of {tokens:,} tokens {scope}"
            target = f" to {max(MIN_ADVISED_TOKENS, tokens * factor)}"
        advice = f"raise `{argument}`{target}, {_RAMBLING_CAVEAT}"
    finding = f"{format_share(share)} of episodes at the end of the run were cut off by {limit}"
    yield problem("cut off", finding=finding, advice=advice)


def check_out_of_turns(run: RunEvidence) -> Iterator[Verdict]:
    share = run.mean_at_end("out_of_turns")
    if share is not None and share >= MAX_LIMITED_SHARE:
        yield problem(
            "out of turns",
            finding=f"{format_share(share)} of episodes at the end of the run used all their turns",
            advice=f"raise `max_turns`, {_RAMBLING_CAVEAT}",
        )


def check_unstable(log: StepLog) -> Iterator[Verdict]:
    # Steps with a learning signal (`trained` is not 0) that lack a loss or a gradient norm which
    # other steps have: it was not finite.
    keys = [key for key in ("loss", "grad_norm") if metric_values(log.entries, key)]
    not_finite = [
        step_number(entry)
        for entry in log.entries
        if metric(entry, "trained") != 0 and any(metric(entry, key) is None for key in keys)
    ]
    if not_finite:
        yield problem(
            "unstable",
            finding=f"{_format_steps(not_finite)} had a loss or a gradient that is not finite",
            advice="use a lower `learning_rate`, or the `precision` fp32",
        )


def _format_steps(steps: Sequence[int]) -> str:
    examples = ", ".join(f"{step:,}" for step in steps[:3]) + (", ..." if len(steps) > 3 else "")
    return f"{len(steps):,} {'step' if len(steps) == 1 else 'steps'} ({examples})"


MAX_UNSCORED_SHARE = 0.02
"""Share of episodes that faults may end: each one makes its group smaller and costs time."""
_MAX_FAULT_CHARS = 300


def check_unscored(log: StepLog, episodes: RunEpisodes) -> Iterator[Verdict]:
    share = metric_mean(log.entries, "unscored")
    if share is None or share < MAX_UNSCORED_SHARE:
        return
    finding = f"{format_share(share)} of episodes were ended by a fault and are unscored"
    advice, source = "look at one", "environment"
    if (last := episodes.last_broken) is not None:
        advice += f" with `ludus show RUN {last.episode_id}`"
        if last.fault is not None:
            message = " ".join(last.fault.message.split())
            if len(message) > _MAX_FAULT_CHARS:
                message = f"{message[: _MAX_FAULT_CHARS - 3]}..."
            finding += f"; the last fault: {message.removesuffix('.')}"
            source = last.fault.where
    if source == "model":
        advice += ": the model failed, not the environment"
    else:
        advice += ", and at the environment's server: its log, its sessions, its time limits"
    yield problem("unscored episodes", finding=finding, advice=advice)


HARD_REWARD = 0.2
"""Initial reward, as a fraction of the best: below it few groups contain a success."""
HARD_ZERO_VARIANCE_SHARE = 0.5
"""Share of zero-variance groups from which on a task counts as out of reach. With groups of eight
it is reached if one attempt in twelve succeeds."""
EASY_REWARD = 0.9
"""Initial reward, as a fraction of the best: what can be gained is hardly more than noise."""
MIN_FORMAT_SHARE = 0.5
"""Share of episodes with valid calls below which the format, and not the task, is what fails."""


def check_format(run: RunEvidence) -> Iterator[Verdict]:
    """Report that few calls were valid, and that the reward stayed low."""
    start, end = run.mean_at_start("format"), run.mean_at_end("format")
    change = run.change
    if start is None or end is None or max(start, end) > MIN_FORMAT_SHARE:
        return
    if max(change.normalized_initial, change.scale.normalize(change.final)) > HARD_REWARD:
        return
    yield problem(
        "format is the bottleneck",
        finding=f"only {format_share(start)} of episodes with complete replies made valid calls at "
        f"the start and {format_share(end)} at the end, and reward stayed low "
        f"({format_reward_change(change)})",
        advice="warm-start the model: `ludus collect` with a teacher or the oracle, `ludus "
        "curate`, `ludus train sft`, then GRPO on the resulting model",
    )


def _named_changes(run: RunEvidence, name: str) -> Iterator[tuple[str, RewardChange]]:
    """Verdict names and changes by environment: in the mean, easy ones would hide hard ones."""
    if not run.environment_changes:
        yield name, run.change
    for change in run.environment_changes:
        yield f"{name}: {change.name}", change


def check_too_easy(run: RunEvidence) -> Iterator[Verdict]:
    """Report a high initial reward, if the best possible one is known."""
    for name, change in _named_changes(run, "too easy"):
        if change.normalized_initial >= EASY_REWARD and change.scale.is_unit:
            yield problem(
                name,
                finding=f"reward started at {format_reward(change.initial, change.scale)}, which "
                f"leaves little to gain ({format_reward_change(change)})",
                advice="make the tasks harder (`task`), or choose another environment",
            )


def check_too_hard(run: RunEvidence) -> Iterator[Verdict]:
    """Report a low, unchanged reward if most groups had zero variance."""
    for name, change in _named_changes(run, "too hard"):
        if change.normalized_initial > HARD_REWARD or change.scale.is_constant:
            continue
        share = logged_zero_variance_share(run.log.entries)
        if change is not run.change:
            first, last = first_and_last_groups(run.log, run.episodes, change.name)
            share = zero_variance_share([*first, *last])
        if share is None or share < HARD_ZERO_VARIANCE_SHARE or not change.is_unchanged:
            continue
        yield problem(
            name,
            finding=f"reward started at {format_reward(change.initial, change.scale)} and did not "
            f"change ({format_reward_change(change)}); {format_share(share)} of groups had zero "
            "reward variance and no learning signal",
            advice="make the tasks easier (`task`), give each more attempts (`group_size`), or "
            "warm-start the model with `ludus train sft`",
        )


MIN_FALL = 0.05
"""Fraction of the scale by which a reward must fall from its best window, or rise to it."""
MIN_FALL_STANDARD_ERRORS = 5.0
"""And in standard errors: the best of many windows is partly luck."""


def check_reward_fell(run: RunEvidence) -> Iterator[Verdict]:
    """Report a fall in reward: past saturation if it rose first, else getting worse."""
    log, change = run.log, run.change
    best, final = log.best_window(), run.mean_at_end("reward")
    held_out = [reward for _, reward in log.held_out]
    if best is None or final is None or (held_out and held_out[-1] == max(held_out) > held_out[0]):
        # Held-out tasks are the same each time; the last steps had harder ones.
        return

    def exceeds_noise(difference: float) -> bool:
        is_large = change.scale.normalize_delta(difference) >= MIN_FALL
        return is_large and difference >= MIN_FALL_STANDARD_ERRORS * log.standard_error

    is_below_start = (
        change.interval is not None
        and change.interval.high < 0
        and change.normalized_delta <= -MIN_DELTA
    )
    if not (is_below_start or exceeds_noise(best.reward - final)):
        return
    if not exceeds_noise(best.reward - (run.mean_at_start("reward") or 0.0)):
        yield problem(
            "getting worse",
            finding=f"reward fell without a certain rise before: {format_reward_change(change)}",
            advice="use a lower `learning_rate`, or more `groups`, which make steps less noisy",
        )
        return
    yield problem(
        "past saturation",
        finding=f"reward was best at steps {best.first:,} to {best.last:,} "
        f"({format_reward(best.reward, change.scale)}) and fell to "
        f"{format_reward(final, change.scale)} by step {log.steps:,}",
        advice=f"train again with `steps` set to {best.last} or with `early_stop`, or continue "
        f"from a checkpoint of about step {best.last:,} if you kept one; a lower `learning_rate` "
        "delays the fall",
    )


COLLAPSED_ENTROPY_NATS = 0.02
"""Per token. At this entropy nearly all attempts at a task are the same."""
COLLAPSED_ENTROPY_RATIO = 0.1
"""Entropy relative to the start, below which no exploration is left."""
ENTROPY_FALL_RATIO = 0.5
"""Entropy relative to the start: above it, the entropy has not fallen, however low it is."""
LOW_REWARD = 0.5
"""Fraction of the best reward. Above it, low entropy may mean that the policy is right."""


def check_entropy(run: RunEvidence) -> Iterator[Verdict]:
    """Report low entropy at low reward, from the start or since the middle of the run."""
    scale = run.change.scale
    if scale.is_constant or scale.normalize(run.change.final) > LOW_REWARD:
        return
    entries = run.log.entries
    key, half = entropy_key(entries), len(entries) // 2
    start, end = run.mean_at_start(key), run.mean_at_end(key)
    middle = metric_mean(entries[max(0, half - run.log.window_size) : half], key)
    if start is None or end is None or middle is None:
        return
    collapsed = max(COLLAPSED_ENTROPY_NATS, COLLAPSED_ENTROPY_RATIO * start)
    if max(middle, end) <= min(collapsed, ENTROPY_FALL_RATIO * start):
        yield problem(
            "entropy collapse",
            finding=f"entropy went from {start:.2g} to {middle:.2g} by step "
            f"{step_number(entries[half - 1]):,}: attempts hardly differ, and reward is still low",
            advice="use a lower `learning_rate` or a higher `temperature`",
        )
    elif max(start, middle, end) <= COLLAPSED_ENTROPY_NATS:
        yield problem(
            "low entropy",
            finding=f"entropy was {start:.2g} at the start and {end:.2g} at the end: attempts at a "
            "task hardly differ, so there is little to learn from",
            advice="use a higher `temperature`, or a warm start that was trained for fewer epochs",
        )


DEAD_GROUPS_SHARE = 0.6
"""Share of zero-variance groups from which on most of the work is wasted."""


def check_dead_groups(run: RunEvidence) -> Iterator[Verdict]:
    """Report zero variance in most groups, in both halves of the run up to its saturation."""
    entries = run.log.entries
    if run.early_stop is not None:
        entries = run.log.entries_before(run.early_stop[0])
    half = len(entries) // 2
    first, second = map(logged_zero_variance_share, (entries[:half], entries[half:]))
    if first is None or second is None or min(first, second) < DEAD_GROUPS_SHARE:
        return
    yield problem(
        "dead groups",
        finding=f"{format_share((first + second) / 2)} of groups had zero reward variance "
        "throughout the run and no learning signal",
        advice="use more attempts at each task (`group_size`), tasks of another difficulty "
        "(`task`)",
    )


WASTED_STEPS_FRACTION = 0.1
"""Fraction of the run after its saturation that makes saturation a problem."""


def check_saturated(run: RunEvidence) -> Iterator[Verdict]:
    """Report where `early_stop` would have ended the run, if it gained nothing after that."""
    log, final = run.log, run.mean_at_end("reward")
    if run.early_stop is None or final is None:
        return
    step, reason = run.early_stop
    at_stop = metric_mean(log.entries_before(step + 1)[-log.window_size :], "reward")
    if at_stop is None or abs(run.change.scale.normalize_delta(final - at_stop)) >= MIN_FALL:
        return
    finding = f"`early_stop` would have ended it at step {step:,}: {reason}"
    wasted = log.steps - step
    if wasted <= WASTED_STEPS_FRACTION * log.steps:
        advice = "it ended when it should; to gain more, use harder tasks"
        yield note("saturated", finding=finding, advice=advice)
        return
    yield problem(
        "saturated",
        finding=f"{finding}; {wasted:,} more steps brought nothing",
        advice=f"stop earlier, with `steps` set to {step} or with `early_stop`; to gain more, "
        "use harder tasks",
    )


def check_learned(run: RunEvidence) -> Iterator[Verdict]:
    log, change = run.log, run.change
    if change.delta <= 0 or change.is_unchanged:
        return
    finding = f"reward rose by {format_reward(change.delta, change.scale, '+')}"
    if change.interval is not None:
        finding += f" (95 % interval {format_change_interval(change)})"
    before = metric_mean(log.entries[-2 * log.window_size : -log.window_size], "reward")
    final, advice = run.mean_at_end("reward"), "measure it on held-out tasks with `ludus eval`"
    if before is not None and final is not None and run.early_stop is None:
        # The last window is above the one before it by more than noise.
        is_large = change.scale.normalize_delta(final - before) >= MIN_DELTA
        if is_large and final - before > 2 * log.standard_error:
            finding += ", and was still rising at the end"
            advice = "more `steps` may bring more"
    yield good("learned", finding=finding, advice=advice)


def check_no_progress(run: RunEvidence) -> Iterator[Verdict]:
    change = run.change
    if change.delta > 0 and not change.is_unchanged:
        return
    share = metric_mean(run.log.entries, "zero_variance")
    yield problem(
        "no progress",
        finding=f"reward did not change with certainty over {run.log.steps:,} steps "
        f"({format_reward_change(change)})"
        + (f"; {format_share(share)} of groups had zero variance" if share is not None else ""),
        advice="use four times as many `groups` or more: with few tasks a step mostly learns "
        "noise, and a higher `learning_rate` alone makes that worse",
    )


MIN_SUCCESS_RISE = 0.2
"""Smallest rise of a bucket's success rate that counts: rates come from few attempts."""
_MAX_BUCKETS_NAMED = 3


def check_curriculum(buckets: Sequence[BucketStats]) -> Iterator[Verdict]:
    rises = {
        f"{each.label} {format_share(each.first_success)} -> {format_share(each.last_success)}": (
            each.last_success - each.first_success
        )
        for each in buckets
        if each.first_success is not None and each.last_success is not None
    }
    risen = [text for text, rise in rises.items() if rise >= MIN_SUCCESS_RISE]
    if risen:
        largest = sorted(risen, key=lambda text: -rises[text])[:_MAX_BUCKETS_NAMED]
        yield good(
            "learned",
            finding=f"the success rate rose in {len(risen)} of {len(rises)} buckets: "
            f"{'; '.join(largest)}",
            advice="measure it on held-out tasks with `ludus eval`",
        )
