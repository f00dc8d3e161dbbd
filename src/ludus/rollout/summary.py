"""The summary of a run folder, computed from the journal where `summary.json` is out of date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.checksum import Checksum
from ludus.data.episode import StopReason
from ludus.data.jsonl import read_lines
from ludus.data.resume_index import ResumeIndex, read_resume_index
from ludus.data.run_folder import RUN_FILE, RunFolder
from ludus.rollout.stats import RunStats


def summarize_run(folder: RunFolder, *, verify: bool = False) -> dict[str, Any]:
    """The content of `summary.json`, brought up to date.

    A run that was killed, or that is in progress, has more episodes than its summary: then the
    journal is read. With `verify` the journal is also checked against the summary's checksum.
    """
    path = folder.episodes_path
    size = path.stat().st_size if path.exists() else 0
    summary = folder.read_summary()
    checksum = Checksum.from_summary(summary)
    if summary.get("bytes") == size:
        unchanged = not verify or not size or Checksum.of_file(path) == checksum
        if unchanged:
            return summary
    is_collected = folder.metadata.kind == "collect"
    # Episodes of imported and rescored runs keep the ids that they had before.
    run = folder.metadata.digest if is_collected else None
    index = read_resume_index(path, run=run, checksum=checksum) if size else ResumeIndex()
    recorded = index.totals.episodes
    planned = max(summary.get("planned", 0), recorded)
    if is_collected:
        return {**RunStats.from_index(index, planned).summary(), **describe_journal(index, size)}
    remaining = planned - recorded
    counts = {"planned": planned, "remaining": remaining, "complete": remaining == 0}
    return {
        **RunStats.from_index(index, 0).summary(),
        **counts,
        **describe_journal(index, size),
    }


def turn_limit_note(path: Path) -> str | None:
    """How many episodes of a run folder the turn limit has cut off, and where the first one was."""
    if not (path / RUN_FILE).exists():
        return None
    folder = RunFolder.open(path)
    summary = summarize_run(folder)
    count = summary["stop_reasons"].get(StopReason.MAX_TURNS, 0)
    if not count:
        return None
    mark = f'"stop_reason":"{StopReason.MAX_TURNS}"'.encode()
    turns = next(
        from_json(line)["turns"] for line in read_lines(folder.episodes_path) if mark in line
    )
    return (
        f"{count:,} of {summary['episodes']:,} episodes {'was' if count == 1 else 'were'} cut off "
        f"at {turns} turns; raise `max_turns`."
    )


def describe_journal(index: ResumeIndex, size: int) -> dict[str, int]:
    """Length and checksum of the journal, by which a later reader sees whether it has changed."""
    checksum = index.checksum
    if checksum is None:
        return {"bytes": size}
    return {"bytes": checksum.size, "crc32": checksum.crc32}
