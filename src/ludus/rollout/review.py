"""What a run folder holds, without playing: its summary, or a new one if that is out of date."""

from __future__ import annotations

from typing import Any

from ludus.data.recorded import Recorded, read_back
from ludus.data.run import RunFolder
from ludus.errors import RunError
from ludus.rollout.tally import Tally


def review(folder: RunFolder) -> dict[str, Any]:
    """The facts of `summary.json`, as they are now.

    A run that was killed, or that is being played at this moment, has more episodes than its
    summary knows of: then the journal is read.
    """
    path = folder.episodes
    size = path.stat().st_size if path.exists() else 0
    try:
        known = folder.read_summary() or {}
    except RunError:
        known = {}  # It is made anew.
    if known.get("bytes") == size:
        return known
    recorded = read_back(path, run=folder.about.digest) if size else Recorded()
    if folder.about.kind == "collect":
        planned = max(known.get("planned", 0), recorded.totals.episodes)
        return {**Tally.of(recorded, planned).summary(), "bytes": size}
    # What came from elsewhere was never planned here, so nothing of it is left to be played.
    facts = {"planned": recorded.totals.episodes, "left": 0, "complete": True}
    return {**Tally.of(recorded, 0).summary(), **facts, "bytes": size}
