"""Results as curves, one for each candidate: over levels of difficulty, and over k of pass@k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ludus.data.task_mean import MeanEstimate
from ludus.evaluation.metrics import ACCURACY, PASS_PREFIX, Metric
from ludus.evaluation.results import Evaluation
from ludus.evaluation.slices import Slice


@dataclass(frozen=True, slots=True)
class ResultCurves:
    """The same metric of all candidates at the same places."""

    title: str
    metric: Metric
    environment: str
    """The environment of the levels, if there are several; else empty."""
    x_title: str
    """What the labels are values of, such as `max_digits`; empty if they name it themselves."""
    labels: tuple[str, ...]
    candidates: tuple[tuple[MeanEstimate | None, ...], ...]
    """For each candidate an estimate at each label; None where there is none."""


def build_level_curves(evaluation: Evaluation) -> list[ResultCurves]:
    """Return the curves over levels of difficulty, for each metric and each environment."""
    levels: dict[str, list[Slice]] = {}
    for part in evaluation.slices:
        if part.level is not None:
            levels.setdefault(part.environment, []).append(part)
    return [
        _level_curves(metric, environment if len(levels) > 1 else "", parts)
        for metric in evaluation.verdict_metrics
        for environment, parts in levels.items()
    ]


def build_pass_curves(evaluation: Evaluation) -> Iterator[ResultCurves]:
    """Yield the curves over k, if there are several; accuracy is pass@1."""
    sizes = {1: ACCURACY}
    for metric in evaluation.shown_metrics:
        if metric.name.startswith(PASS_PREFIX):
            sizes[int(metric.name.removeprefix(PASS_PREFIX))] = metric.name
    if len(sizes) < 2:
        return
    accuracy = next(metric for metric in evaluation.metrics if metric.name == ACCURACY)
    candidates = tuple(
        tuple(score.estimates.get(sizes[k]) for k in sorted(sizes)) for score in evaluation.scores
    )
    yield ResultCurves("pass@k", accuracy, "", "k", tuple(map(str, sorted(sizes))), candidates)


def _level_curves(metric: Metric, environment: str, levels: Sequence[Slice]) -> ResultCurves:
    texts = [level.level or "" for level in levels]
    # A name that all levels have in common is said once.
    names = {text.partition("=")[0] for text in texts}
    common = names.pop() if len(names) == 1 and not any(" " in text for text in texts) else ""
    return ResultCurves(
        title=" ".join(
            part for part in (metric.title, environment, "by", common or "difficulty") if part
        ),
        metric=metric,
        environment=environment,
        x_title=common,
        labels=tuple(text.removeprefix(f"{common}=") if common else text for text in texts),
        candidates=tuple(
            tuple(level.estimates[number].get(metric.name) for level in levels)
            for number in range(len(levels[0].estimates))
        ),
    )
