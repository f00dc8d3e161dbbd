"""Describes which parts of the observations a model is shown."""

from __future__ import annotations

from ludus.check.episodes import Transcript
from ludus.data.messages import content_text
from ludus.protocol.observation_text import build_view

MAX_LINES, MAX_CHARACTERS = 12, 800
"""Limits of the quoted first observation."""


def describe_visibility(episode: Transcript) -> str:
    """Return the fields that an episode showed and hid, and its first observation as text."""
    shown: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for result in episode.results:
        view = build_view(result.observation)
        images = {name.partition(".")[0] for name, _ in view.images}
        shown |= {name: f"{name} (image)" if name in images else name for name in view.shown}
        hidden |= view.hidden
    lines = [f"shown: {', '.join(shown.values()) or 'nothing'}"]
    never_shown = [f"{name} ({reason})" for name, reason in hidden.items() if name not in shown]
    if never_shown:
        lines.append(f"not shown: {', '.join(never_shown)}")
    if episode.results and (text := content_text(episode.results[0].content)):
        excerpt = text[:MAX_CHARACTERS].splitlines()[:MAX_LINES]
        lines.append("first observation:")
        lines += [f"  {line}" for line in excerpt]
        if "\n".join(excerpt) != text.rstrip("\n"):
            lines.append("  …")
    return "\n".join(lines)
