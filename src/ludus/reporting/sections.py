"""Read a folder into a section: a run, a data set, a trained model or an evaluation."""

from __future__ import annotations

from pathlib import Path

from ludus.data.stage_output import find_output
from ludus.errors import NameFlags, RunError, similar_path_hint
from ludus.reporting.dataset_section import dataset_section
from ludus.reporting.document import Section
from ludus.reporting.evaluation_section import evaluation_section
from ludus.reporting.run_section import run_section
from ludus.reporting.training_section import training_section


def read_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about a folder, or about a file of episodes."""
    if not path.exists():
        hint = similar_path_hint(str(path)) or "`ludus runs` lists runs."
        raise RunError(f"There is no folder {path}. {hint}")
    output = find_output(path)
    if output is not None:
        if output.kind == "training":
            return training_section(path, samples=samples, name_flags=name_flags)
        if output.kind == "evaluation":
            return evaluation_section(path, samples=samples, name_flags=name_flags)
        if output.kind == "run" and output.episodes is not None:
            return run_section(path, output.episodes, samples=samples)
        if output.kind == "dataset":
            return dataset_section(output, samples=samples)
    raise RunError(
        f"{path} holds nothing to report: it is no run, data set, trained model or evaluation."
    )
