"""A task for the model card: one that the model was trained on, as its prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ludus.data.episode_reader import episodes
from ludus.data.messages import messages_before_reply
from ludus.data.training_row import InvalidRow
from ludus.errors import LudusError
from ludus.policy.vision.training_images import row_has_images
from ludus.train.config import Method
from ludus.train.data.loading import Split
from ludus.train.data.row_schema import parse_conversations
from ludus.train.output.record_schema import TaskExample

SAMPLE_SIZE = 64
MAX_TASK_CHARS = 20_000
"""A longer task would dominate the card."""


def sample_row_task(split: Split, method: Method) -> TaskExample | None:
    """The shortest of the first tasks; None if all are long or have images."""
    rows = islice((row for batch in split.batches(SAMPLE_SIZE) for _, row in batch), SAMPLE_SIZE)
    # A card without a task is better than a model without a card.
    with suppress(OSError):
        tasks = []
        for row in rows:
            try:
                conversation = parse_conversations(row, method)[0]
            except (InvalidRow, LudusError):
                continue
            roles = [message["role"] for message in conversation.messages]
            first = roles.index("assistant") if "assistant" in roles else 0
            prompt, tools = conversation.messages[:first], conversation.tools or ()
            task = TaskExample(messages=tuple(map(dict, prompt)), tools=tuple(map(dict, tools)))
            tasks.append(task)
        return _shortest_task(tasks)
    return None


def sample_episode_task(file: Path) -> TaskExample | None:
    """The shortest of the tasks in the first episodes of a log."""
    if not file.is_file():
        return None
    with suppress(OSError, LudusError):
        return _shortest_task(
            TaskExample(
                messages=tuple(
                    each.model_dump() for each in messages_before_reply(episode.messages)
                ),
                tools=tuple(episode.tools),
            )
            for episode in islice(episodes(file), SAMPLE_SIZE)
        )
    return None


def _shortest_task(tasks: Iterable[TaskExample]) -> TaskExample | None:
    sizes = [
        (len(json.dumps([*task.messages, *task.tools])), task)
        for task in tasks
        if task.messages and not row_has_images(task.messages)
    ]
    size, shortest = min(sizes, key=lambda each: each[0], default=(0, None))
    return shortest if size <= MAX_TASK_CHARS else None
