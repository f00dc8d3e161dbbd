"""A task for the card: one of those that a model was trained on, as it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ludus.data.episode_reader import episodes
from ludus.data.messages import messages_before_reply
from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.policy.vision.row_images import has_images
from ludus.train.config import Method
from ludus.train.data.loading import Split
from ludus.train.data.row_schema import InvalidRow, parse_conversations
from ludus.train.output.record_schema import TaskExample

SAMPLE_SIZE = 64
MAX_TASK_CHARS = 20_000
"""Characters above which a task would bury the rest of the card."""


def sample_row_task(split: Split, method: Method) -> TaskExample | None:
    """The shortest of the first tasks; None where all are long or show images."""
    rows = islice((row for batch in split.batches(SAMPLE_SIZE) for _, row in batch), SAMPLE_SIZE)
    # A card without a task is better than a model without a card.
    with suppress(OSError):
        return _shortest_task(filter(None, (_row_task(row, method) for row in rows)))
    return None


def sample_episode_task(file: Path) -> TaskExample | None:
    """The shortest of the tasks that were played first."""
    if not file.is_file():
        return None
    with suppress(OSError, LudusError):
        return _shortest_task(
            _example(
                [message.model_dump() for message in messages_before_reply(each.messages)],
                each.tools,
            )
            for each in islice(episodes(file), SAMPLE_SIZE)
        )
    return None


def _row_task(row: bytes | JsonObject, method: Method) -> TaskExample | None:
    try:
        talk = parse_conversations(row, method)[0]
    except (InvalidRow, LudusError):
        return None
    roles = [message["role"] for message in talk.messages]
    first = roles.index("assistant") if "assistant" in roles else 0
    return _example(talk.messages[:first], talk.tools or ())


def _example(messages: Sequence[Any], tools: Sequence[Any]) -> TaskExample:
    return TaskExample(messages=tuple(messages), tools=tuple(tools))


def _shortest_task(found: Iterable[TaskExample]) -> TaskExample | None:
    shown = [each for each in found if each.messages and not has_images(each.messages)]
    return min((each for each in shown if _size(each) <= MAX_TASK_CHARS), key=_size, default=None)


def _size(example: TaskExample) -> int:
    return len(json.dumps([*example.messages, *example.tools]))
