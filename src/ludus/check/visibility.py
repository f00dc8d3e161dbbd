"""What a model sees of an environment's observations, and what it does not see."""

from __future__ import annotations

from collections.abc import Awaitable

from ludus.check.episodes import Transcript
from ludus.data.content import content_text
from ludus.protocol.observation_text import build_view

MAX_LINES, MAX_CHARACTERS = 12, 800
"""Of the first observation, as the report quotes it."""


async def describe_visibility(playing: Awaitable[Transcript]) -> str:
    """The fields that one episode showed and hid, and its first observation as a model reads it."""
    episode = await playing
    shown: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for result in episode.results:
        seen = build_view(result.observation)
        images = {name.partition(".")[0] for name, _ in seen.images}
        shown |= {name: f"{name} (image)" if name in images else name for name in seen.shown}
        hidden |= seen.hidden
    lines = [f"shown: {', '.join(shown.values()) or 'nothing'}"]
    secret = [f"{name} ({reason})" for name, reason in hidden.items() if name not in shown]
    if secret:
        lines.append(f"not shown: {', '.join(secret)}")
    if episode.results and (words := content_text(episode.results[0].content)):
        lines.append("first observation:")
        lines += [f"  {line}" for line in _excerpt(words)]
    return "\n".join(lines)


def _excerpt(words: str) -> list[str]:
    lines = words[:MAX_CHARACTERS].splitlines()[:MAX_LINES]
    return lines if "\n".join(lines) == words.rstrip("\n") else [*lines, "…"]
