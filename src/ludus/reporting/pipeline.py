"""`report`: write one file about runs, data sets, trained models and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ludus.data.config import check_at_least
from ludus.data.files import write_atomically
from ludus.data.run_folder import versions
from ludus.errors import ConfigError, NameFlags, RunError
from ludus.reporting.document import REPORT_MARK
from ludus.reporting.html_page import render_html
from ludus.reporting.sections import read_section

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
