"""The summary of a run folder, computed from the journal where `summary.json` is out of date."""

from __future__ import annotations

from typing import Any

from ludus.data.checksum import Checksum
from ludus.data.resume_index import ResumeIndex, read_resume_index
from ludus.data.run_folder import RunFolder
from ludus.errors import RunError
from ludus.rollout.stats import RunStats


def summarize_run(folder: RunFolder, *, verify: bool = False) -> dict[str, Any]:
    """The content of `summary.json`, brought up to date.

    A run that was killed, or that is in progress, has more episodes than its summary: then the
    journal is read. With `verify` the journal is also checked against the summary's checksum.
    """
    path = folder.episodes_path
    size = path.stat().st_size if path.exists() else 0
    try:
        summary = folder.read_summary() or {}
    except RunError:
        summary = {}
    checksum = Checksum.from_summary(summary)
    if summary.get("bytes") == size:
        unchanged = not verify or not size or Checksum.of_file(path) == checksum
        if unchanged:
            return summary
    index = (
        read_resume_index(path, run=folder.metadata.digest, checksum=checksum)
        if size
        else ResumeIndex()
    )
    if folder.metadata.kind == "collect":
        planned = max(summary.get("planned", 0), index.totals.episodes)
        return {**RunStats.from_index(index, planned).summary(), **describe_journal(index, size)}
    # An imported run has no plan, so that nothing of it can be left.
    unplanned = {"planned": index.totals.episodes, "left": 0, "complete": True}
    return {
        **RunStats.from_index(index, 0).summary(),
        **unplanned,
        **describe_journal(index, size),
    }


def describe_journal(index: ResumeIndex, size: int) -> dict[str, int]:
    """Length and checksum of the journal, by which a later reader sees whether it has changed."""
    checksum = index.checksum
    if checksum is None:
        return {"bytes": size}
    return {"bytes": checksum.size, "crc32": checksum.crc32}
