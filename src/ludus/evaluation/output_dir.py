"""The output folder of an evaluation.

evals/chain_sum-1a2b3c4d/
  base/  sft/       a run folder for each candidate
  summary.json      all results, for programs
  README.md         the report
  results.svg       the chart
  levels.svg        the results by difficulty, if tasks differ in it
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.config import config_digest, describe_differences
from ludus.data.estimates import MeanEstimate
from ludus.data.files import atomic_dir, existing_files
from ludus.data.json_files import object_field, to_jsonable
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE, RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import OtherSettings, RunError
from ludus.evaluation.config import EvalConfig
from ludus.evaluation.metrics import PASS_PREFIX, build_metrics, load_attempts
from ludus.evaluation.results import CandidateScore, Evaluation
from ludus.evaluation.slices import Slice
from ludus.evaluation.verdict import Outcome, Verdict

EVALS_DIR = Path("evals")
REPORT_FILE = "README.md"
CHART_FILE = "results.svg"
LEVEL_CHART_FILE = "levels.svg"
OUTPUT_FILES = (SUMMARY_FILE, REPORT_FILE, CHART_FILE, LEVEL_CHART_FILE)
_DRAFT_PREFIX = ".evaluating-"
_MAX_DIFFERENCES_SHOWN = 4


def default_folder(environment: str, settings: Mapping[str, JsonObject]) -> Path:
    """Return the folder for these candidates on these tasks; the same ones get the same folder."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", environment).strip("-")[:60]
    return EVALS_DIR / f"{name}-{config_digest(dict(settings))}"


def check_folder(folder: Path, settings: JsonObject) -> None:
    """Raise RunError for a folder with other content than an evaluation, or than run folders.

    Raises OtherSettings for an evaluation on other tasks, which would be replaced; `settings` are
    those that all candidates share.
    """
    if (folder / RUN_FILE).exists():
        raise RunError(f"{folder} holds a run, not an evaluation. Use another `out`.")
    names = existing_files(folder, _DRAFT_PREFIX)
    foreign = [
        name
        for name in names
        if name not in OUTPUT_FILES
        and not name.startswith(".")
        and not (folder / name / RUN_FILE).exists()
    ]
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_bytes())
    except (OSError, ValueError):
        summary = None
    if not isinstance(summary, dict) or summary.get("kind") != "eval":
        foreign += [name for name in OUTPUT_FILES if name in names]
    if foreign:
        raise RunError(
            f"{folder} is not empty ({foreign[0]}) and holds no evaluation. Use another `out`."
        )
    before = {key: value for key, value in object_field(summary or {}, "settings").items()}
    before.pop("episodes", None)
    if before and (differences := list(describe_differences(before, to_jsonable(settings)))):
        shown = "; ".join(differences[:_MAX_DIFFERENCES_SHOWN])
        raise OtherSettings(
            f"{folder} holds an evaluation with other settings ({shown}). Use another `out`, or "
            "`resume=False` to write beside it."
        )


def atomic_output(folder: Path) -> AbstractContextManager[Path]:
    """Return a draft folder whose files are moved to `folder` at the end, the summary last."""
    return atomic_dir(folder, _DRAFT_PREFIX, marker=SUMMARY_FILE, owned=OUTPUT_FILES)


def is_candidate_complete(folder: Path, settings: JsonObject, config: EvalConfig) -> bool:
    """Whether a candidate's folder has all episodes; raises for a run with other settings."""
    if not (folder / RUN_FILE).exists():
        return False
    run = RunFolder.resume_or_create(folder, settings)
    attempts = load_attempts(run, config.total_episodes)
    if config.retry_broken and any(attempt.broken for attempt in attempts):
        return False
    return len(attempts) == config.total_episodes


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
