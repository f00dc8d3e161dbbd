"""Metrics of an evaluation, with intervals: of one candidate, and of the difference of two.

Pure functions over attempts. A metric is None for attempts that it does not apply to. Each task
has the same weight, however many attempts were made at it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import comb, fsum

from ludus.data.episode_reader import EpisodeHead, episodes
from ludus.data.interval_estimates import (
    Interval,
    MeanEstimate,
    estimate_mean,
    is_binary,
    mean_interval,
    paired_share_interval,
)
from ludus.data.messages import messages_before_reply
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject


@dataclass(frozen=True, slots=True)
class Attempt:
    """One episode in numbers."""

    plan_index: int
    """Its index in the plan: the same task, and the same attempt at it, for every candidate."""
    environment: str
    task: str
    prompt: str
    """The text before the model's first reply, without the system prompt."""
    broken: bool
    format_compliant: bool | None
    reward: float | None
    reply_tokens: float | None
    cut_off: bool = False
    arguments: JsonObject = field(default_factory=dict)
    """The task's arguments of `reset`."""


def load_attempts(folder: RunFolder, planned_episodes: int) -> list[Attempt]:
    """Load the recorded episodes of the plan, in its order, to compute metrics of.

    If an episode was retried, the first attempt that is not broken counts, as on resume.
    """
    attempts: dict[int, Attempt] = {}
    for episode in episodes(folder.episodes_path, strict=False):
        index = EpisodeHead.from_episode(episode).plan_index
        if index is None or not episode.episode_id.startswith(folder.metadata.digest):
            continue
        if index >= planned_episodes or (index in attempts and not attempts[index].broken):
            continue
        prompt = messages_before_reply(episode.messages)
        tokens = episode.usage.completion_tokens
        # The usage of a retried episode covers all tries.
        has_usage = episode.attempt == 1 and tokens and episode.turns
        attempts[index] = Attempt(
            plan_index=index,
            environment=episode.environment,
            task=episode.group_id,
            prompt="\n".join(message.text for message in prompt if message.role != "system"),
            broken=episode.broken,
            format_compliant=episode.format_compliant,
            reward=None if episode.broken else episode.reward,
            reply_tokens=tokens / episode.turns if has_usage else None,
            cut_off=episode.cut_off,
            arguments=episode.task,
        )
    return [attempts[index] for index in sorted(attempts)]


ACCURACY = "accuracy"
FORMAT_COMPLIANCE = "format_compliance"
MEAN_REWARD = "mean_reward"
COMPARED_METRICS = (ACCURACY, MEAN_REWARD)
"""Metrics with a verdict, and with results by environment and difficulty."""
PASS_PREFIX = "pass@"


def mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def pass_at_k(outcomes: Sequence[float], k: int) -> float | None:
    """The probability that at least one of k attempts solves the task, without bias.

    The share of the subsets of k outcomes (1 or 0) that have a 1 (Chen et al., Evaluating Large
    Language Models Trained on Code, 2021). None for fewer than k outcomes.
    """
    n, failed = len(outcomes), sum(1 for outcome in outcomes if not outcome)
    return None if n < k else 1 - comb(failed, k) / comb(n, k)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number for each attempt, combined for each task, and averaged over tasks."""

    name: str
    title: str
    is_share: bool
    """Whether the values are 1 (hit) and 0 (miss) only."""
    compute: Callable[[Attempt], float | None]
    hide_if_zero: bool = False
    """Whether it is shown only if some candidate's is not 0."""
    combine: Callable[[Sequence[float]], float | None] = mean
    """The value of a task from the values of its attempts; None if there are too few."""
    decimals: int = 1
    """Digits behind the point, of shares in percent."""

    def format_number(self, value: float, sign: str = "") -> str:
        """A value without its unit; `sign` "+" is for differences."""
        return f"{100 * value if self.is_share else value:{sign},.{self.decimals}f}"

    def format_value(self, value: float) -> str:
        """A value with its unit: 80.0% or 0.125."""
        return self.format_number(value) + ("%" if self.is_share else "")


@dataclass(frozen=True, slots=True)
class PairedTask:
    """The values of a task for two candidates, over the attempts that both have."""

    before: float
    after: float
    pairs: int

    @property
    def difference(self) -> float:
        return self.after - self.before


def build_metrics(solved_at: float, pass_k: Sequence[int] = ()) -> tuple[Metric, ...]:
    """Return all metrics. A task is solved by a reward of `solved_at` or more."""

    def accuracy(attempt: Attempt) -> float | None:
        return None if attempt.reward is None else float(attempt.reward >= solved_at)

    def format_compliance(attempt: Attempt) -> float | None:
        return None if attempt.format_compliant is None else float(attempt.format_compliant)

    return (
        Metric(FORMAT_COMPLIANCE, "Format compliance", True, format_compliance),
        Metric("cut_off", "Cut off", True, lambda it: float(it.cut_off), hide_if_zero=True),
        Metric(ACCURACY, "Accuracy", True, accuracy),
        *(
            Metric(name, name, True, accuracy, combine=partial(pass_at_k, k=k))
            for k, name in ((k, f"{PASS_PREFIX}{k}") for k in pass_k)
        ),
        Metric(MEAN_REWARD, "Mean reward", False, lambda it: it.reward, decimals=3),
        Metric("reply_tokens", "Tokens in a reply", False, lambda it: it.reply_tokens),
    )


def estimate_metric(metric: Metric, attempts: Iterable[Attempt]) -> MeanEstimate | None:
    """Estimate a metric; None if it applies to no task. Broken attempts never count."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        value = None if attempt.broken else metric.compute(attempt)
        if value is not None:
            values[attempt.task].append(value)
    means, n = list[float](), 0
    for task in values.values():
        combined = metric.combine(task)
        if combined is not None:
            means.append(combined)
            n += len(task)
    counts = metric.is_share or _are_successes(metric, values.values())
    return estimate_mean(means, n, is_share=counts)


def estimate_delta(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> MeanEstimate | None:
    """Estimate other - base, over the pairs of attempts that the metric applies to."""
    tasks = pair_tasks(metric, base, other)
    if not tasks:
        return None
    differences = [task.difference for task in tasks]
    if metric.is_share or _are_successes(metric, ((it.before, it.after) for it in tasks)):
        interval: Interval | None = paired_share_interval([(it.after, it.before) for it in tasks])
    else:
        interval = mean_interval(differences)
    return MeanEstimate.from_means(differences, interval, sum(task.pairs for task in tasks))


def estimate_all(metrics: Iterable[Metric], attempts: Sequence[Attempt]) -> dict[str, MeanEstimate]:
    """Estimate the metrics that apply to any task, by name."""
    estimates = {metric.name: estimate_metric(metric, attempts) for metric in metrics}
    return {name: each for name, each in estimates.items() if each is not None}


def estimate_deltas(
    metrics: Iterable[Metric], base: Sequence[Attempt], other: Sequence[Attempt]
) -> dict[str, MeanEstimate]:
    """Estimate other - base in the metrics that apply to both, by name."""
    deltas = {metric.name: estimate_delta(metric, base, other) for metric in metrics}
    return {name: each for name, each in deltas.items() if each is not None}


def _are_successes(metric: Metric, values: Iterable[Iterable[float]]) -> bool:
    """Whether all rewards are 0 or 1, so that their mean is the share of successes.

    Then it has an interval also if all of them are equal.
    """
    return metric.name == MEAN_REWARD and is_binary([each for task in values for each in task])


def pair_tasks(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> list[PairedTask]:
    """Pair the values of a metric by task and attempt, for attempts that both candidates made."""
    base_values = {each.plan_index: metric.compute(each) for each in base if not each.broken}
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for attempt in other:
        before, after = base_values.get(attempt.plan_index), metric.compute(attempt)
        if before is not None and after is not None and not attempt.broken:
            pairs[attempt.task].append((before, after))
    tasks = []
    for task in pairs.values():
        before, after = (metric.combine(values) for values in zip(*task, strict=True))
        if before is not None and after is not None:
            tasks.append(PairedTask(before, after, len(task)))
    return tasks
