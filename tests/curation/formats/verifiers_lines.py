"""What verifiers wrote, and lines that a test writes in its place.

The files were written by verifiers itself, playing five small questions of our own against a
stand-in for a chat API: `results/` by `vf-eval` of 0.1.14 and `traces/` by `vf-eval` of 0.4.0.
Some lines were left out, and from the rest the paths of the machine that they were made on.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.verifiers import read_verifiers
from ludus.data.episode import Episode

FILES = Path(__file__).parent / "files" / "verifiers"
RESULTS = FILES / "results" / "results.jsonl"
TRACES = FILES / "traces" / "traces.jsonl"


def episodes(path: Path) -> list[Episode]:
    records = list(read_verifiers(path))
    assert not [item for item in records if isinstance(item, UnreadableRecord)]
    return [item for item in records if isinstance(item, Episode)]


def write_lines(folder: Path, *lines: dict[str, Any], name: str = "traces.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def build_trace(**changes: Any) -> dict[str, Any]:
    """A line with one trace."""
    trace: dict[str, Any] = next(lines(TRACES))["traces"][0]
    return {"traces": [trace | changes]}
