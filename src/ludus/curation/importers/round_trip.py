"""Carry fields of an episode through formats that have no place for them.

Exporters store them under one key, so that importing the file restores the episode. Messages, tools
and reward are always read from the format itself, so that edits to the file take effect.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ludus.curation.importers.base import require_object
from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject

KEY = "ludus"
# Part of every format, or computed from its messages.
_NATIVE_FIELDS = frozenset({"version", "messages", "tools", "reward", "turns", "tool_calls"})


def extra_fields(episode: Episode, *, known: Collection[str]) -> JsonObject:
    """Return the fields of an episode that the format does not store; `known` are those it does."""
    return {
        name: value
        for name, value in episode.model_dump(mode="json").items()
        if name not in _NATIVE_FIELDS and name not in known
    }


def restore_fields(episode: Episode, fields: Any) -> Episode:
    """Restore the result of `extra_fields`, if there is any."""
    if fields is None:
        return episode
    extra = {
        name: value
        for name, value in require_object(fields, KEY).items()
        if name not in _NATIVE_FIELDS
    }
    restored = Episode.model_validate({**dict(episode), **extra})
    return restored.model_copy(update={"reward": None}) if restored.broken else restored
