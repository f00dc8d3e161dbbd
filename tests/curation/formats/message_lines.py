"""Write lines with messages, and import them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.messages import read_messages
from ludus.data.episode import Episode

ASKED = {"role": "user", "content": "What is 1 + 1?"}
SAID = {"role": "assistant", "content": "2"}


def read(folder: Path, *lines: Any) -> list[Episode | UnreadableRecord]:
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return list(read_messages(file))


def one(folder: Path, **line: Any) -> Episode:
    (episode,) = read(folder, line)
    assert isinstance(episode, Episode), episode
    return episode
