"""Checks under a student: what its chat template and tokenizer do with a row."""

from __future__ import annotations

from collections.abc import Iterator

from ludus.curation.lint.report import Problem
from ludus.curation.lint.student import Student
from ludus.data.training_row import InvalidRow, RowConversation, TrainingRow
from ludus.errors import RequestRefused, TemplateRefused
from ludus.policy.chat.encoding import Tools, content_guard
from ludus.policy.chat.rendering import RenderedConversation
from ludus.policy.chat.template_loss import find_dropped_pieces

_ERROR_CHECKS = ("drops-system-prompt", "drops-tools", "drops-tool-calls", "drops-tool-results")


def check_row_with_template(
    row: TrainingRow, student: Student, *, max_length: int | None
) -> tuple[list[RenderedConversation], list[Problem]]:
    """Render a row with the student's template, and check the result.

    There are no conversations if the template refuses the row.
    """
    if not all(conversation.messages for conversation in row.conversations):
        return [], []
    try:
        conversations = student.render_row(row)
    except (TemplateRefused, RequestRefused, InvalidRow) as error:
        return [], [Problem("template-refuses", "error", str(error))]
    problems = []
    if isinstance(student.chat_format, str):
        problems.append(Problem("template-unmarked", "error", student.chat_format))
    for conversation in row.conversations:
        problems += _check_template(conversation, row.tools, student)
    for rendered in conversations:
        problems += _check_tokens(rendered, student, max_length)
    return conversations, problems


def _check_template(
    conversation: RowConversation, tools: Tools, student: Student
) -> Iterator[Problem]:
    """Check what the template does to the contents of a conversation."""
    messages = conversation.messages
    for kind, message in find_dropped_pieces(messages, tools, student.render_text):
        check = f"drops-{kind}"
        yield Problem(check, "error" if check in _ERROR_CHECKS else "warning", message)
    template = student.tokenizer.get_chat_template(student.template, tools)
    guard = content_guard(student.tokenizer, template)
    for at, each in enumerate(messages):
        # Tokens that the template writes turns with.
        if found := guard.mark([each])[2]:
            message = f"message {at} ({each['role']}) has the text {', '.join(found)}"
            yield Problem("control-tokens", "warning", message)


def _check_tokens(
    rendered: RenderedConversation, student: Student, max_length: int | None
) -> Iterator[Problem]:
    """Check the tokens and the loss mask."""
    if not isinstance(student.chat_format, str):
        # Special tokens too: not every tokenizer marks its end-of-turn token as special.
        stop_tokens = student.special_tokens | student.chat_format.stop_token_ids
        decode, stops = student.tokenizer.decode, []
        for _, end in rendered.spans:
            visible = (i for i in reversed(rendered.ids[:end]) if decode([i]).strip())
            stops.append(next(visible, None) in stop_tokens)
        if not any(rendered.mask):
            yield Problem("no-loss", "error", "no token has a loss")
        elif not any(stops):
            message = "no end-of-turn token has a loss: the student would not learn to stop"
            yield Problem("stop-token", "error", message)
        elif not stops[-1]:
            message = "the end-of-turn token of the last turn has no loss"
            yield Problem("stop-token", "warning", message)
    if max_length is None or len(rendered.ids) <= max_length:
        return
    message = f"{len(rendered.ids):,} tokens, of which {max_length:,} are kept"
    yield Problem("too-long", "warning", message)
    if any(rendered.mask) and not any(rendered.truncate(max_length).mask):
        first = rendered.spans[0][0]
        yield Problem("cut-off", "error", f"the first token with a loss is number {first + 1:,}")
