"""What another format has no place for, carried along in it under one name of ours.

A file that Ludus writes for another tool comes back as the episodes that it was made from. What
the format can say itself (messages, tools, reward) is read from there and never from here, so that
an edited file is read as edited.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ludus.curation.importers.base import require_object
from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject

KEY = "ludus"
# Said by every format itself, or counted again from its messages.
_NATIVE_FIELDS = frozenset({"version", "messages", "tools", "reward", "turns", "tool_calls"})


def extra_fields(episode: Episode, *, known: Collection[str]) -> JsonObject:
    """The episode's other fields; `known` are those that the format says itself."""
    return {
        name: value
        for name, value in episode.model_dump(mode="json").items()
        if name not in _NATIVE_FIELDS and name not in known
    }


def restore_fields(episode: Episode, fields: Any) -> Episode:
    """The episode with what was carried along; None: nothing was."""
    if fields is None:
        return episode
    given = {
        name: value
        for name, value in require_object(fields, KEY).items()
        if name not in _NATIVE_FIELDS
    }
    whole = Episode.model_validate({**dict(episode), **given})
    return whole.model_copy(update={"reward": None}) if whole.broken else whole
