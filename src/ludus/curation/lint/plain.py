"""The checks that need no student, put together: a row -> findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic_core import to_json

from ludus.curation.lint import calls, talk
from ludus.curation.lint.finding import Finding, Level
from ludus.curation.lint.rows import Conversation, SourceLocation, TrainingRow
from ludus.data.episode import digest_64
from ludus.data.tool_schema import JsonObject

_TRAINED_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")


def check_row(row: TrainingRow, location: SourceLocation) -> Iterator[Finding]:
    """All that a row by itself can be faulted for."""
    for side in row.conversations:
        yield from _check_conversation(side, row.tools, location)
    for words in calls.invalid_schemas(row.tools):
        yield Finding(location, "tool-schema", "warning", words)
    if row.is_pair and row.conversations[0].messages == row.conversations[1].messages:
        yield Finding(location, "equal-sides", "error", "chosen and rejected are the same")


def _check_conversation(
    side: Conversation, tools: list[JsonObject] | None, location: SourceLocation
) -> Iterator[Finding]:
    def found(check: str, level: Level, words: Iterable[str]) -> Iterator[Finding]:
        return (Finding(location, check, level, each) for each in words)

    yield from found("no-assistant", "error", talk.missing_assistant(side))
    yield from found("roles", "warning", talk.misplaced_roles(side))
    # What was rejected may have been rejected for its calls.
    bad: Level = "note" if side.name == "rejected" else "error"
    yield from found("unknown-tool", bad, calls.unknown_tools(side, tools))
    yield from found("arguments-not-object", bad, calls.unreadable_calls(side))
    for meant, words in calls.invalid_arguments(side, tools):
        yield Finding(location, "arguments-unfit", "note" if meant else bad, words)
    yield from found("no-tools", "warning", calls.calls_without_tools(side, tools))
    yield from found("unanswered-call", "warning", calls.unanswered_calls(side))
    yield from found("answer-without-call", "warning", calls.results_without_call(side))
    yield from found("environment-tokens", "note", talk.environment_turns(side))
    if side.name != "rejected":
        yield from found("answer-in-prompt", "warning", talk.answers_in_prompt(side))


class DuplicateFinder:
    """Rows that were there before.

    Holds a hash and a place for each row, not the row: some 170 bytes of memory.
    """

    def __init__(self) -> None:
        self._seen: dict[int, SourceLocation] = {}

    def check(self, columns: JsonObject, location: SourceLocation) -> Iterator[Finding]:
        """Only what is trained is compared: two episodes may say the same word for word."""
        text = {name: columns[name] for name in _TRAINED_COLUMNS if name in columns}
        first = self._seen.setdefault(digest_64(to_json(text).decode()), location)
        if first is location:
            return
        if first.path == location.path:
            yield Finding(location, "duplicate", "warning", f"the same as line {first.line}")
        else:
            yield Finding(location, "test-in-train", "error", f"the same as {first}")
