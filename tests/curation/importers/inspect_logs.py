"""Logs that Inspect AI wrote, and logs that a test writes in its place.

The files were written by Inspect itself, whose scripted model (`mockllm/model`) played a few small
questions of our own: `colours.eval` and `epochs.json` by inspect-ai 0.3.285, `failed.eval` by
0.3.110, before logs were compressed with zstandard. With its own reader and writer the events that
are neither the model's nor a tool's were then taken out, and so were tracebacks.
"""

import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from ludus.curation.importers.base import UnreadableRecord
from ludus.curation.importers.inspect_importer import InspectImporter
from ludus.data.episode import Episode

FILES = Path(__file__).parent / "files" / "inspect"
COLOURS = FILES / "colours.eval"
EPOCHS = FILES / "epochs.json"
FAILED = FILES / "failed.eval"


def episodes(path: Path) -> list[Episode]:
    records = list(InspectImporter().read_episodes(path))
    assert not [item for item in records if isinstance(item, UnreadableRecord)]
    return [item for item in records if isinstance(item, Episode)]


def member(name: str) -> Any:
    with ZipFile(FAILED) as archive:
        return json.loads(archive.read(name))


def build_sample(**changes: Any) -> dict[str, Any]:
    """Return the sample about the sky, which succeeded, with changes."""
    sample: dict[str, Any] = member("samples/sky_epoch_1.json")
    return sample | changes


def write_log(folder: Path, *samples: Any, header: str | None = "header.json") -> Path:
    path = folder / "log.eval"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for number, sample in enumerate(samples, 1):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
        if header is not None:
            archive.writestr(header, json.dumps(member("header.json")))
    return path


def one(folder: Path, **changes: Any) -> Episode:
    """Import the sample about the sky, with changes."""
    return episodes(write_log(folder, build_sample(**changes)))[0]
