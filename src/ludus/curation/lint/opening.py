"""Replies that begin with white space which the words before them swallow.

A model is asked with a prompt in ids, and its reply follows. In a row both are one text, and a
newline at the reply's beginning may become one token with the newline at the prompt's end: the
student is then trained after ids that it is never asked with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ludus.curation.lint.rows import Conversation, TrainingRow
from ludus.data.tool_schema import JsonObject
from ludus.errors import TemplateRefused

TokenizeMessages = Callable[
    [Sequence[JsonObject], Sequence[JsonObject] | None, bool], Sequence[int]
]
"""The ids of messages under tools; last, whether the model is to speak next."""


def find_merged_whitespace(
    side: Conversation, row: TrainingRow, tokenize: TokenizeMessages
) -> Iterator[str]:
    """The replies after whose prompt the row does not go on, for no reason but white space."""
    for at in range(side.prompt_length, len(side.messages)):
        reply = side.messages[at]
        bare = _strip_leading_whitespace(reply)
        if at == 0 or reply["role"] != "assistant" or bare == reply:
            continue
        before = side.messages[:at]
        if _prompt_is_prefix(before, bare, row, tokenize) and not _prompt_is_prefix(
            before, reply, row, tokenize
        ):
            yield f"the prompt is no prefix of the row: message {at} begins with white space"


def _prompt_is_prefix(
    before: Sequence[JsonObject], reply: JsonObject, row: TrainingRow, tokenize: TokenizeMessages
) -> bool:
    """Whether the row's ids begin with those that the model is asked with."""
    try:
        asked, whole = (
            tokenize(before, row.tools, True),
            tokenize([*before, reply], row.tools, False),
        )
    except TemplateRefused:
        return True
    return list(whole[: len(asked)]) == list(asked)


def _strip_leading_whitespace(reply: JsonObject) -> JsonObject:
    """The reply without white space at the beginning of what it says or thinks."""
    return {
        name: value.lstrip() if isinstance(value, str) and name != "role" else value
        for name, value in reply.items()
    }
