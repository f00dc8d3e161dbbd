"""A task for the card: one of those that a model was trained on, as it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ludus.data.lines import episodes
from ludus.data.messages import messages_before_reply
from ludus.data.tools import JsonObject
from ludus.errors import LudusError
from ludus.policy.eyes.row_images import has_images
from ludus.train.examples import BadRow, conversations
from ludus.train.rows import Split
from ludus.train.settings import Method
from ludus.train.training import Example

SAMPLE = 64
LONGEST = 20_000
"""Characters above which a task would bury the rest of the card."""


def task_of_rows(split: Split, method: Method) -> Example | None:
    """The shortest of the first tasks; None where all are long or show images."""
    rows = islice((row for batch in split.batches(SAMPLE) for _, row in batch), SAMPLE)
    # A card without a task is better than a model without a card.
    with suppress(OSError):
        return _shortest(filter(None, (_asked(row, method) for row in rows)))
    return None


def task_of_episodes(file: Path) -> Example | None:
    """The shortest of the tasks that were played first."""
    if not file.is_file():
        return None
    with suppress(OSError, LudusError):
        return _shortest(
            _example(
                [message.model_dump() for message in messages_before_reply(each.messages)],
                each.tools,
            )
            for each in islice(episodes(file), SAMPLE)
        )
    return None


def _asked(row: bytes | JsonObject, method: Method) -> Example | None:
    try:
        talk = conversations(row, method)[0]
    except (BadRow, LudusError):
        return None
    roles = [message["role"] for message in talk.messages]
    first = roles.index("assistant") if "assistant" in roles else 0
    return _example(talk.messages[:first], talk.tools or ())


def _example(messages: Sequence[Any], tools: Sequence[Any]) -> Example:
    return Example(messages=tuple(messages), tools=tuple(tools))


def _shortest(found: Iterable[Example]) -> Example | None:
    shown = [each for each in found if each.messages and not has_images(each.messages)]
    return min((each for each in shown if _size(each) <= LONGEST), key=_size, default=None)


def _size(example: Example) -> int:
    return len(json.dumps([*example.messages, *example.tools]))
