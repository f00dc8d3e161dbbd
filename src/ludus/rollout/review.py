"""What a run folder holds, without playing: its summary, or a new one if that is out of date."""

from __future__ import annotations

from typing import Any

from ludus.data.recorded import read_back
from ludus.data.run import RunFolder
from ludus.rollout.tally import Tally


def review(folder: RunFolder) -> dict[str, Any]:
    """The facts of `summary.json`, as they are now.

    A run that was killed, or that is being played at this moment, has more episodes than its
    summary knows of: then the journal is read.
    """
    path = folder.episodes
    size = path.stat().st_size if path.exists() else 0
    known = folder.read_summary() or {}
    if known.get("bytes") == size:
        return known
    recorded = read_back(path, run=folder.about.digest)
    planned = max(known.get("planned", 0), recorded.totals.episodes)
    return {**Tally.of(recorded, planned).summary(), "bytes": size}
