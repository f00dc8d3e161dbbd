"""Stored runs of a guessing game, and judges of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chat_stub import Json

from ludus.data.episode import Episode, EpisodeFault, StopReason, format_episode_id
from ludus.data.episode_reader import episodes
from ludus.data.messages import Message
from ludus.data.run_folder import RunFolder

RUN_ID = "c0ffee00"
GUESS = re.compile(r"<attempt(?: id=\"(\d+)\")?>.*?guess (\d+)", re.DOTALL)


def build_episode(
    index: int, guess: int = 5, *, group: str | None = None, **fields: Any
) -> Episode:
    """An attempt to guess ten; a guess earns a tenth of itself."""
    group = group or f"task {index}"
    messages = (
        Message(role="user", content=f"Guess a high number. ({group})"),
        Message(role="assistant", content=f"I guess {guess}"),
    )
    required = {
        "episode_id": format_episode_id(RUN_ID, index), "stop_reason": StopReason.DONE,
        "environment": "guess", "group_id": group, "reward": guess / 10, "messages": messages,
        "rewards": {"size": guess / 10}, "turns": 1, "done": True,
    }  # fmt: skip
    return Episode.model_validate({**required, **fields})


def build_broken(index: int) -> Episode:
    fault = EpisodeFault(kind="SessionLost", where="environment", message="gone")
    return build_episode(index, reward=None, stop_reason=StopReason.BROKEN, error=fault)


def write_run(path: Path, stored: Iterable[Episode]) -> Path:
    folder = RunFolder.create(path, {"environment": "guess", "group_size": 4, "agent": {}})
    folder.episodes_path.write_bytes(b"".join(episode.to_line() for episode in stored))
    return path


def read(folder: Path) -> list[Episode]:
    return sorted(episodes(folder, strict=True), key=lambda episode: episode.episode_id)


def grade_guesses(prompt: str, score: Callable[[int], Any] = lambda guess: guess / 10) -> str:
    """The reply of a judge that scores by the guess, for single episodes and for groups."""
    found = [(number, score(int(guess))) for number, guess in GUESS.findall(prompt)]
    if not found[0][0]:
        return f"Here it is:\n```json\n{json.dumps({'reason': 'so', 'score': found[0][1]})}\n```"
    grades = [{"id": int(number), "reason": "so", "score": value} for number, value in found]
    return json.dumps({"attempts": grades})


def judging(request: Json) -> Json:
    """The reply of the stub to a judge's prompt."""
    contents = [message["content"] for message in request["messages"]]
    texts = (text if isinstance(text, str) else text[0]["text"] for text in contents)
    return {"content": grade_guesses(next(text for text in texts if "<attempt" in text))}
