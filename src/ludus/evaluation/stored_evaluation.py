"""Read the results of an evaluation back from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.run_folder import SUMMARY_FILE
from ludus.data.task_mean import MeanEstimate
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.evaluation.metrics import PASS_PREFIX, build_metrics
from ludus.evaluation.results import CandidateScore, Evaluation
from ludus.evaluation.slices import Slice
from ludus.evaluation.verdict import Outcome, Verdict


def load_evaluation(folder: Path) -> Evaluation:
    """Load an evaluation."""
    try:
        summary = from_json((folder / SUMMARY_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / SUMMARY_FILE} holds no evaluation: {error}.") from None
    return parse_evaluation(folder, summary)


def parse_evaluation(folder: Path, summary: JsonObject) -> Evaluation:
    """Parse the content of `summary.json`; raises RunError if it is no evaluation."""
    try:
        return _build_evaluation(folder, summary)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{folder / SUMMARY_FILE} holds no evaluation: {error}.") from None


def _build_evaluation(folder: Path, summary: JsonObject) -> Evaluation:
    scores = tuple(map(_parse_score, summary["candidates"]))
    names = dict.fromkeys(name for score in scores for name in score.estimates)
    pass_k = [int(name.removeprefix(PASS_PREFIX)) for name in names if name.startswith(PASS_PREFIX)]
    return Evaluation(
        folder=folder,
        settings=summary["settings"],
        metrics=build_metrics(summary["solved_at"], pass_k),
        scores=scores,
        solved_at=summary["solved_at"],
        not_in=summary["not_in"],
        stopped=summary["stopped"],
        versions=summary["versions"],
        command=summary["command"],
        ambiguous_environments=tuple(summary["ambiguous_environments"]),
        slices=tuple(map(_parse_slice, summary["slices"])),
    )


def _parse_score(fields: Mapping[str, Any]) -> CandidateScore:
    deltas = _parse_estimates(fields["deltas"])
    verdicts = {
        name: Verdict(Outcome(each["outcome"]), deltas[name], each["episodes_needed"])
        for name, each in fields["verdicts"].items()
    }
    return CandidateScore(
        label=fields["label"],
        agent=fields["agent"],
        episodes=fields["episodes"],
        remaining=fields["remaining"],
        broken=fields["broken"],
        unscored=fields["unscored"],
        cut_off=fields["cut_off"],
        contaminated=fields["contaminated"],
        estimates=_parse_estimates(fields["metrics"]),
        deltas=deltas,
        verdicts=verdicts,
    )


def _parse_slice(fields: Mapping[str, Any]) -> Slice:
    return Slice(
        environment=fields["environment"],
        level=fields["level"],
        estimates=tuple(map(_parse_estimates, fields["metrics"])),
        deltas=tuple(map(_parse_estimates, fields["deltas"])),
    )


def _parse_estimates(fields: Mapping[str, Any]) -> dict[str, MeanEstimate]:
    return {name: MeanEstimate(**each) for name, each in fields.items()}
