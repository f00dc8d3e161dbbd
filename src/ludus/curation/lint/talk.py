"""Checks on a conversation by itself: who speaks when, and whether the prompt gives it away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ludus.curation.lint.call import parse_calls
from ludus.curation.lint.rows import Conversation, message_text
from ludus.data.tool_schema import JsonObject

ROLES = ("system", "developer", "user", "assistant", "tool")
MIN_ANSWER_CHARS = 4
"""Characters of an answer below which finding it in a prompt means nothing."""
MAX_ANSWER_CHARS = 80
"""Characters above which words are an explanation, and no answer."""


def missing_assistant(side: Conversation) -> Iterator[str]:
    """Nothing said means nothing to learn."""
    own, which = side.messages[side.prompt_length :], f"the {side.name} side" if side.name else "it"
    if not own:
        yield f"{which} holds no messages"
    elif not any(message["role"] == "assistant" for message in own):
        yield f"{which} holds no assistant turn"


def misplaced_roles(side: Conversation) -> Iterator[str]:
    """What a model would not meet in use: late system prompts, nobody to answer, no one in between.

    Which orders a template takes at all is found by rendering with it.
    """
    roles = [message["role"] for message in side.messages]
    spoken = [role for role in roles if role not in ("system", "developer")]
    if spoken and spoken[0] != "user":
        yield f"the first turn is the {spoken[0]}'s, where the user's should be"
    for at, (before, role) in enumerate(zip(["", *roles], roles, strict=False)):
        if role not in ROLES:
            yield f"message {at} has the role {role!r}, which no template knows"
        elif role in ("system", "developer") and before not in ("", "system", "developer"):
            yield f"message {at} is a system prompt in the middle"
        elif role == before == "assistant":
            yield f"message {at} is a second assistant turn in a row"
        elif role == "tool" and before == "user":
            yield f"message {at} is a tool's answer right after the user"


def environment_turns(side: Conversation) -> Iterator[str]:
    """Turns inside a side of a pair that the model did not write."""
    others = [
        message for message in side.messages[side.prompt_length :] if message["role"] != "assistant"
    ]
    if side.name and others:
        yield (
            f"{len(others)} of {len(side.messages) - side.prompt_length} messages of the {side.name} side "
            "are the environment's, which no loss may cover"
        )


def answers_in_prompt(side: Conversation) -> Iterator[str]:
    """The answer, where it stands as a whole word in what came before the first reply.

    The answer is what the last calls said, or the last words if they are short. Yields at most
    one: many values of one call may stand there.
    """
    replies = [
        message for message in side.messages[side.prompt_length :] if message["role"] == "assistant"
    ]
    if not replies:
        return
    prompt = "\n".join(_prompt_texts(side.messages)).lower()
    for value in _answer_candidates(replies):
        word = value.lower()
        if word in prompt and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", prompt):
            yield f"the answer {value!r} stands in the prompt"
            return


def _prompt_texts(messages: list[JsonObject]) -> Iterator[str]:
    for message in messages:
        if message["role"] == "assistant":
            return
        if message["role"] != "tool":
            yield message_text(message)


def _answer_candidates(replies: list[JsonObject]) -> Iterator[str]:
    calling = next((calls for reply in reversed(replies) if (calls := parse_calls(reply))), [])
    for value in (str(leaf) for call in calling for leaf in _leaf_values(call.arguments)):
        if len(value.strip()) >= MIN_ANSWER_CHARS:
            yield value.strip()
    last = message_text(replies[-1]).strip().rstrip(".")
    if MIN_ANSWER_CHARS <= len(last) <= MAX_ANSWER_CHARS and not parse_calls(replies[-1]):
        yield last


def _leaf_values(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaf_values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaf_values(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value
