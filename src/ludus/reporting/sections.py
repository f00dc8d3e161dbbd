"""Read a folder into a section: a run, a data set, a trained model or an evaluation."""

from __future__ import annotations

from pathlib import Path

from ludus.curation.output_dir import METADATA_FILE
from ludus.data.episode_reader import holds_episodes
from ludus.data.training_log import RECORD_FILE
from ludus.errors import RunError, similar_path_hint
from ludus.evaluation.stored_evaluation import is_evaluation
from ludus.reporting.dataset_section import dataset_section
from ludus.reporting.document import NameFlags, Section
from ludus.reporting.evaluation_section import evaluation_section
from ludus.reporting.run_section import run_section
from ludus.reporting.training_section import training_section


def read_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about a folder, or about a file of episodes."""
    if not path.exists():
        hint = similar_path_hint(str(path)) or "`ludus runs` lists runs."
        raise RunError(f"There is no folder {path}. {hint}")
    if (path / RECORD_FILE).is_file():
        return training_section(path, samples=samples, name_flags=name_flags)
    if is_evaluation(path):
        return evaluation_section(path, samples=samples, name_flags=name_flags)
    if (path / METADATA_FILE).is_file():
        return dataset_section(path, samples=samples)
    episodes = path / "episodes.jsonl" if path.is_dir() else path
    if episodes.is_file() and holds_episodes(episodes):
        return run_section(path, episodes, samples=samples)
    raise RunError(
        f"{path} holds nothing to report: it is no run, data set, trained model or evaluation."
    )
