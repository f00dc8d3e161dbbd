"""Checks under a student: what its chat template and tokenizer do with a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ludus.curation.lint.lint_rows import SourceLocation
from ludus.curation.lint.report import Finding, Level
from ludus.curation.lint.student import Student
from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import RowConversation, TrainingRow
from ludus.errors import RequestRefused, TemplateRefused
from ludus.policy.chat.rendering import RenderedConversation
from ludus.policy.chat.template_loss import find_dropped_pieces
from ludus.policy.vision.training_images import ContentPartError

_ERROR_CHECKS = ("drops-system-prompt", "drops-tools", "drops-tool-calls", "drops-tool-results")
_PART_MARK = "zqpartqz"


@dataclass(frozen=True, slots=True)
class TemplateCheckResult:
    """A row rendered with the student's template, and what was found."""

    conversations: list[RenderedConversation]
    """Empty if the template refuses the row."""
    findings: list[Finding]

    @property
    def length(self) -> int:
        """Number of tokens of the longest conversation, which has to fit into `max_length`."""
        return max((len(conversation.ids) for conversation in self.conversations), default=0)


def check_row_with_template(
    row: TrainingRow, location: SourceLocation, student: Student, *, max_length: int | None
) -> TemplateCheckResult:
    """Render a row with the student's template and check the result."""
    if not all(conversation.messages for conversation in row.conversations):
        return TemplateCheckResult([], [])
    try:
        conversations = student.render_row(row)
    except (TemplateRefused, RequestRefused, ContentPartError) as error:
        return TemplateCheckResult([], [Finding(location, "template-refuses", "error", str(error))])
    problems = [
        *_check_template(row, student),
        *(
            problem
            for rendered in conversations
            for problem in _check_tokens(rendered, student, max_length)
        ),
    ]
    return TemplateCheckResult(conversations, [Finding(location, *problem) for problem in problems])


def _check_template(row: TrainingRow, student: Student) -> Iterator[tuple[str, Level, str]]:
    """Yield check, level and message of what the template does to the row's contents."""
    if isinstance(student.chat_format, str):
        yield "template-unmarked", "error", student.chat_format
    if row.tools == []:
        messages = row.conversations[0].messages
        with suppress(TemplateRefused):
            if student.render_text(messages, []) != student.render_text(messages, None):
                message = "`tools` is an empty list, and the template still announces tools"
                yield "empty-tools", "warning", message
    for conversation in row.conversations:
        messages = conversation.messages
        if _renders_list_repr(conversation, row, student):
            message = "content is a list of parts, and the template renders its Python repr"
            yield "content-as-list", "error", message
        for kind, message in find_dropped_pieces(messages, row.tools, student.render_text):
            check = f"drops-{kind}"
            yield check, "error" if check in _ERROR_CHECKS else "warning", message
        for message in _find_control_tokens(conversation, row, student):
            yield "control-tokens", "warning", message
        for message in _find_merged_whitespace(conversation, row, student):
            yield "prompt-swallows", "warning", message
        if _double_encodes_arguments(conversation, row, student):
            message = "arguments are JSON strings, which the template encodes a second time"
            yield "quoted-arguments", "warning", message


def _check_tokens(
    rendered: RenderedConversation, student: Student, max_length: int | None
) -> Iterator[tuple[str, Level, str]]:
    """Yield check, level and message of what is wrong with the tokens and the loss mask."""
    if not student.is_unmarked and not any(rendered.mask):
        yield "no-loss", "error", "no token has a loss"
    elif not student.is_unmarked:
        stops = [
            last_visible_token(student, rendered, end) in student.stop_tokens
            for _, end in rendered.spans
        ]
        if not any(stops):
            message = "no end-of-turn token has a loss: the student would not learn to stop"
            yield "stop-token", "error", message
        elif not stops[-1]:
            yield "stop-token", "warning", "the end-of-turn token of the last turn has no loss"
    if max_length is None or len(rendered.ids) <= max_length:
        return
    yield "too-long", "warning", f"{len(rendered.ids):,} tokens, of which {max_length:,} are kept"
    if any(rendered.mask) and not any(rendered.truncate(max_length).mask):
        first = rendered.spans[0][0]
        yield "cut-off", "error", f"the first token with a loss is number {first + 1:,}"


def last_visible_token(student: Student, rendered: RenderedConversation, end: int) -> int:
    """Return the last token before `end` that is not whitespace; -1 if there is none."""
    ids = rendered.ids[:end]
    return next((i for i in reversed(ids) if str(student.tokenizer.decode([i])).strip()), -1)


def _renders_list_repr(conversation: RowConversation, row: TrainingRow, student: Student) -> bool:
    """Whether the template renders the Python repr of a list of content parts.

    Each part gets a key that no template reads: it is rendered only with the part as a whole.
    """
    if not any(isinstance(message.get("content"), list) for message in conversation.messages):
        return False
    marked = []
    for message in conversation.messages:
        content: Any = message.get("content")
        if isinstance(content, list):
            parts = [
                {**part, _PART_MARK: _PART_MARK} if isinstance(part, dict) else part
                for part in content
            ]
            message = {**message, "content": parts}
        marked.append(message)
    try:
        return repr(_PART_MARK) in student.render_text(marked, row.tools)
    except TemplateRefused:
        return False


def _find_control_tokens(
    conversation: RowConversation, row: TrainingRow, student: Student
) -> Iterator[str]:
    """Yield a message for each turn whose text has tokens that the template writes turns with."""
    for at, message in enumerate(conversation.messages):
        if found := student.find_control_tokens(message, row.tools):
            yield f"message {at} ({message['role']}) has the text {', '.join(found)}"


def _find_merged_whitespace(
    conversation: RowConversation, row: TrainingRow, student: Student
) -> Iterator[str]:
    """Yield a message for each reply whose leading whitespace merges with the prompt's tokens.

    At inference a reply follows the tokens of the prompt. In a row both are tokenized together, and
    a newline at the beginning of the reply may merge with the newline at the end of the prompt. The
    student is then trained on a prompt that never occurs at inference.
    """
    for at in range(max(1, conversation.prompt_length), len(conversation.messages)):
        reply = conversation.messages[at]
        stripped = {
            name: value.lstrip() if isinstance(value, str) and name != "role" else value
            for name, value in reply.items()
        }
        if reply["role"] != "assistant" or stripped == reply:
            continue
        prompt = conversation.messages[:at]
        if _prompt_is_prefix(prompt, stripped, row, student) and not _prompt_is_prefix(
            prompt, reply, row, student
        ):
            yield (
                f"the prompt is not a token prefix of the row: message {at} begins with whitespace"
            )


def _prompt_is_prefix(
    prompt: Sequence[JsonObject], reply: JsonObject, row: TrainingRow, student: Student
) -> bool:
    """Whether the tokens of prompt and reply begin with the tokens of the prompt alone."""
    try:
        prompt_ids = student.tokenize(prompt, row.tools, True)
        ids = student.tokenize([*prompt, reply], row.tools, False)
    except TemplateRefused:
        return True
    return list(ids[: len(prompt_ids)]) == list(prompt_ids)


def _double_encodes_arguments(
    conversation: RowConversation, row: TrainingRow, student: Student
) -> bool:
    """Whether the template JSON-encodes arguments that are JSON strings already."""
    parsed = []  # The messages with arguments as objects.
    for message in conversation.messages:
        calls = []
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            with suppress(TypeError, ValueError, RecursionError):
                changed = {**function, "arguments": json.loads(function.get("arguments"))}
                call = {**call, "function": changed} if "function" in call else changed
            calls.append(call)
        parsed.append({**message, "tool_calls": calls} if calls else message)
    if parsed == conversation.messages:
        return False
    try:
        text = student.render_text(conversation.messages, row.tools)
        return student.render_text(parsed, row.tools) != text and '\\"' in text
    except TemplateRefused:
        return False
