"""What a run folder holds, without playing: its summary, or a new one if that is out of date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.data.checksum import Checksum
from ludus.data.resume_index import ResumeIndex, read_resume_index
from ludus.data.run_folder import RunFolder
from ludus.errors import RunError
from ludus.rollout.stats import RunStats


def summarize_run(folder: RunFolder, *, verify: bool = False) -> dict[str, Any]:
    """The facts of `summary.json`, as they are now.

    A run that was killed, or that is being played at this moment, has more episodes than its
    summary knows of: then the journal is read. With `verified` it is also read where it is as long
    as the summary says, and not the same any more.
    """
    path = folder.episodes_path
    size = path.stat().st_size if path.exists() else 0
    try:
        known = folder.read_summary() or {}
    except RunError:
        known = {}  # It is made anew.
    checksum = parse_checksum(known)
    if known.get("bytes") == size and not (verify and size and not _is_unchanged(folder, checksum)):
        return known
    recorded = (
        read_resume_index(path, run=folder.metadata.digest, checksum=checksum)
        if size
        else ResumeIndex()
    )
    if folder.metadata.kind == "collect":
        planned = max(known.get("planned", 0), recorded.totals.episodes)
        return {
            **RunStats.from_index(recorded, planned).summary(),
            **describe_journal(recorded, size),
        }
    # What came from elsewhere was never planned here, so nothing of it is left to be played.
    facts = {"planned": recorded.totals.episodes, "left": 0, "complete": True}
    return {
        **RunStats.from_index(recorded, 0).summary(),
        **facts,
        **describe_journal(recorded, size),
    }


def parse_checksum(summary: Mapping[str, Any]) -> Checksum | None:
    """The journal's checksum when the summary was written; None where it has none."""
    size, crc32 = summary.get("bytes"), summary.get("crc32")
    return Checksum(size, crc32) if isinstance(size, int) and isinstance(crc32, int) else None


def describe_journal(index: ResumeIndex, size: int) -> dict[str, int]:
    """What a summary says of its journal, to tell whether it has grown or changed since."""
    checksum = index.checksum
    if checksum is None:
        return {"bytes": size}
    return {"bytes": checksum.size, "crc32": checksum.crc32}


def _is_unchanged(folder: RunFolder, checksum: Checksum | None) -> bool:
    return checksum is not None and Checksum.of_file(folder.episodes_path) == checksum
