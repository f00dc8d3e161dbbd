"""Checks of a row that need no chat template: the order of roles, leaked answers.

Every check yields one message per problem that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ludus.curation.lint import tool_call_checks as call_checks
from ludus.curation.lint.lint_rows import SourceLocation
from ludus.curation.lint.report import Finding, Level
from ludus.curation.tool_call_text import parse_tool_calls
from ludus.data.messages import message_text
from ludus.data.training_row import RowConversation, TrainingRow

ROLES = ("system", "developer", "user", "assistant", "tool")
MIN_ANSWER_CHARS = 4
"""Shorter answers occur in prompts by chance."""
MAX_ANSWER_CHARS = 80
"""Longer texts are explanations rather than answers."""


def check_row(row: TrainingRow, location: SourceLocation) -> Iterator[Finding]:
    """Run all checks that need no student."""

    def findings(check: str, level: Level, messages: Iterable[str]) -> Iterator[Finding]:
        return (Finding(location, check, level, message) for message in messages)

    tools = row.tools
    for conversation in row.conversations:
        yield from findings("no-assistant", "error", missing_assistant(conversation))
        yield from findings("roles", "warning", misplaced_roles(conversation))
        # A conversation may have been rejected because of its calls.
        level: Level = "note" if conversation.name == "rejected" else "error"
        yield from findings("unknown-tool", level, call_checks.unknown_tools(conversation, tools))
        yield from findings(
            "arguments-not-object", level, call_checks.unreadable_calls(conversation)
        )
        for coercible, message in call_checks.invalid_arguments(conversation, tools):
            yield Finding(location, "arguments-unfit", "note" if coercible else level, message)
        yield from findings(
            "no-tools", "warning", call_checks.calls_without_tools(conversation, tools)
        )
        yield from findings(
            "unanswered-call", "warning", call_checks.unanswered_calls(conversation)
        )
        orphans = call_checks.results_without_call(conversation)
        yield from findings("answer-without-call", "warning", orphans)
        yield from findings("environment-tokens", "note", environment_turns(conversation))
        if conversation.name != "rejected":
            leaks = answers_in_prompt(conversation)
            yield from findings("answer-in-prompt", "warning", leaks)
    yield from findings("tool-schema", "warning", call_checks.invalid_schemas(tools))
    if row.is_pair and row.conversations[0].messages == row.conversations[1].messages:
        yield Finding(location, "equal-sides", "error", "chosen and rejected are the same")


def missing_assistant(conversation: RowConversation) -> Iterator[str]:
    subject = f"the {conversation.name} side" if conversation.name else "it"
    if not conversation.completion:
        yield f"{subject} has no messages"
    elif not conversation.replies:
        yield f"{subject} has no assistant turn with loss"


def misplaced_roles(conversation: RowConversation) -> Iterator[str]:
    """Orders of roles that do not occur in use, such as a system prompt in the middle.

    Which orders a chat template accepts at all is found out by rendering.
    """
    roles = [message["role"] for message in conversation.messages]
    turns = [role for role in roles if role not in ("system", "developer")]
    if turns and turns[0] != "user":
        yield f"the first turn has the role {turns[0]!r}, not 'user'"
    for at, (previous, role) in enumerate(zip(["", *roles], roles, strict=False)):
        if role not in ROLES:
            yield f"message {at} has the unknown role {role!r}"
        elif role in ("system", "developer") and previous not in ("", "system", "developer"):
            yield f"message {at} is a system prompt in the middle"
        elif role == previous == "assistant":
            yield f"message {at} is a second assistant turn in a row"
        elif role == "tool" and previous == "user":
            yield f"message {at} is a tool result right after a user turn"


def environment_turns(conversation: RowConversation) -> Iterator[str]:
    """Messages on a side of a pair that the model did not write."""
    completion = conversation.completion
    count = sum(message["role"] != "assistant" for message in completion)
    if conversation.name and count:
        yield (
            f"{count} of {len(completion)} messages of the {conversation.name} side come from the "
            "environment and must be masked out of the loss"
        )


def answers_in_prompt(conversation: RowConversation) -> Iterator[str]:
    """Report the answer if it occurs as a whole word before the first reply.

    The answer is any argument of the last tool calls, or the last text if it is short. At most one
    problem is reported, because several arguments of one call may occur.
    """
    if not conversation.replies:
        return
    prompt_texts = []
    for message in conversation.messages:
        if message["role"] == "assistant":
            break
        if message["role"] != "tool":
            prompt_texts.append(message_text(message))
    prompt = "\n".join(prompt_texts).lower()
    replies = conversation.replies
    last_calls = next(
        (calls for reply in reversed(replies) if (calls := parse_tool_calls(reply))), []
    )
    answers = [str(leaf).strip() for call in last_calls for leaf in _answer_values(call.arguments)]
    last_text = message_text(replies[-1]).strip().rstrip(".")
    if len(last_text) <= MAX_ANSWER_CHARS and not parse_tool_calls(replies[-1]):
        answers.append(last_text)
    for answer in answers:
        if len(answer) < MIN_ANSWER_CHARS:
            continue
        word = answer.lower()
        if word in prompt and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", prompt):
            yield f"the answer {answer!r} occurs in the prompt"
            return


def _answer_values(value: Any) -> Iterator[str | int | float]:
    """Yield the texts and numbers in the arguments of a call, which may be the answer."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _answer_values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _answer_values(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value
