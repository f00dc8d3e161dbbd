"""The folder of an evaluation.

evals/chain_sum-1a2b3c4d/
  base/  sft/       a run folder for each candidate
  summary.json      every figure, for programs
  README.md         the report, for people
  results.svg       the figures as a picture
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from ludus.data.atomic_write import atomic_dir, existing_files
from ludus.data.config_diff import config_digest
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

EVALS_DIR = Path("evals")
SUMMARY_FILE = "summary.json"
REPORT_FILE = "README.md"
CHART_FILE = "results.svg"
OUTPUT_FILES = (SUMMARY_FILE, REPORT_FILE, CHART_FILE)
_DRAFT_PREFIX = ".evaluating-"


def default_folder(environment: str, settings: Mapping[str, JsonObject]) -> Path:
    """The same candidates on the same tasks always get the same folder."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", environment).strip("-")[:60]
    return EVALS_DIR / f"{words}-{config_digest(dict(settings))}"


def check_folder(folder: Path) -> None:
    """Whether an evaluation may be in this folder. What is not ours is never touched."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder} is a file, and an evaluation needs a folder. Use another -o.")
    if (folder / "run.json").exists():
        raise RunError(f"{folder} holds a run, and an evaluation needs a folder of its own.")
    names = existing_files(folder, _DRAFT_PREFIX)
    foreign = [
        name
        for name in names
        if name not in OUTPUT_FILES
        and not name.startswith(".")
        and not (folder / name / "run.json").exists()
    ]
    if foreign or not (
        _is_evaluation_summary(folder / SUMMARY_FILE) or not {*OUTPUT_FILES} & {*names}
    ):
        what = foreign[0] if foreign else next(name for name in OUTPUT_FILES if name in names)
        raise RunError(
            f"{folder} is not empty ({what}) and holds no evaluation of Ludus. Use another -o."
        )


def next_free_folder(path: Path) -> Path:
    """The first of `path`, `path-2`, `path-3` and so on that is not there; none is made."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def atomic_output(folder: Path) -> AbstractContextManager[Path]:
    """A draft folder; what is in it when the work is done goes to `folder`, the summary last."""
    return atomic_dir(folder, _DRAFT_PREFIX, marker=SUMMARY_FILE, owned=OUTPUT_FILES)


def _is_evaluation_summary(file: Path) -> bool:
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and facts.get("kind") == "eval"
