"""`report`: write one file about runs, data sets, trained models and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ludus.data.config import check_at_least
from ludus.data.files import write_atomically
from ludus.data.run_folder import versions
from ludus.data.stage_output import find_stage_output
from ludus.errors import ConfigError, NameFlags, RunError, similar_path_hint
from ludus.reporting.document import REPORT_MARK, Section
from ludus.reporting.html_page import render_html
from ludus.reporting.sections import (
    dataset_section,
    evaluation_section,
    run_section,
    training_section,
)

_HEAD_BYTES = 4096


def report(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    samples: int = 2,
    name_flags: NameFlags = lambda text, command: text,
) -> Path:
    """Write a report about some folders, in their order, and return its path.

    Args:
        sources: run folders, data sets, trained models and evaluations.
        out: the file, which is replaced: a page that needs neither a server nor the network.
        title: by default the titles of the sections.
        samples: good and bad transcripts of each section, at most; 0 leaves out all of them.
        name_flags: replaces arguments in advice by flags of a command.
    """
    paths = [Path(source) for source in ([sources] if isinstance(sources, str | Path) else sources)]
    out = Path(out).expanduser()
    check_at_least("samples", samples, 0)
    if not paths:
        raise ConfigError("No folders given. Give at least one run, data set, model or evaluation.")
    if out.is_dir():
        raise RunError(f"{out} is a folder. Name a file, such as {out / 'report.html'}.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise RunError(f"{out} cannot be a report: its name must end with .html.")
    if out.exists() and not is_report(out):
        raise RunError(f"{out} exists and is not a report of Ludus. Use another name.")
    sections = [
        read_section(path.expanduser(), samples=samples, name_flags=name_flags) for path in paths
    ]
    title = title or ", ".join(dict.fromkeys(section.title for section in sections))
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    page = render_html(title, f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC} · {used}", sections)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from None
    return out


def is_report(path: Path) -> bool:
    """Whether a file was written as a report, and may be replaced by another one."""
    try:
        with path.open("rb") as file:
            return REPORT_MARK.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False


def read_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about a folder, or about a file of episodes."""
    if not path.exists():
        hint = similar_path_hint(str(path)) or "`ludus runs` lists runs."
        raise RunError(f"There is no folder {path}. {hint}")
    output = find_stage_output(path)
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
