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

from ludus.data.atomic_write import atomic_dir, existing_files
from ludus.data.config_diff import config_digest, describe_differences
from ludus.data.jsonable import object_field, to_jsonable
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE, RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import OtherSettings, RunError
from ludus.evaluation.attempts import load_attempts
from ludus.evaluation.config import EvalConfig

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
