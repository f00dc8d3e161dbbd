"""The checks that need no student, put together: a row -> findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic_core import to_json

from ludus.curate.lint import calls, talk
from ludus.curate.lint.finding import Finding, Level
from ludus.curate.lint.rows import Place, Row, Side
from ludus.data.episode import digest_64
from ludus.data.tools import JsonObject

_TEXT = ("messages", "prompt", "completion", "chosen", "rejected", "tools")


def plain_findings(row: Row, place: Place) -> Iterator[Finding]:
    """All that a row by itself can be faulted for."""
    for side in row.sides:
        yield from _of_side(side, row.tools, place)
    for words in calls.broken_schemas(row.tools):
        yield Finding(place, "tool-schema", "warning", words)
    if row.is_pair and row.sides[0].messages == row.sides[1].messages:
        yield Finding(place, "equal-sides", "error", "chosen and rejected are the same")


def _of_side(side: Side, tools: list[JsonObject] | None, place: Place) -> Iterator[Finding]:
    def found(check: str, level: Level, words: Iterable[str]) -> Iterator[Finding]:
        return (Finding(place, check, level, each) for each in words)

    yield from found("no-assistant", "error", talk.no_assistant(side))
    yield from found("roles", "warning", talk.out_of_order(side))
    # What was rejected may have been rejected for its calls.
    bad: Level = "note" if side.name == "rejected" else "error"
    yield from found("unknown-tool", bad, calls.unknown(side, tools))
    yield from found("arguments-not-object", bad, calls.unreadable(side))
    for meant, words in calls.unfit(side, tools):
        yield Finding(place, "arguments-unfit", "note" if meant else bad, words)
    yield from found("no-tools", "warning", calls.without_tools(side, tools))
    yield from found("unanswered-call", "warning", calls.unanswered(side))
    yield from found("answer-without-call", "warning", calls.uncalled(side))
    yield from found("environment-tokens", "note", talk.environment_turns(side))
    if side.name != "rejected":
        yield from found("answer-in-prompt", "warning", talk.given_away(side))


class Duplicates:
    """Rows that were there before.

    Holds a hash and a place for each row, not the row: some 170 bytes of memory.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Place] = {}

    def findings(self, columns: JsonObject, place: Place) -> Iterator[Finding]:
        """Only what is trained is compared: two episodes may say the same word for word."""
        text = {name: columns[name] for name in _TEXT if name in columns}
        first = self._seen.setdefault(digest_64(to_json(text).decode()), place)
        if first is place:
            return
        if first.path == place.path:
            yield Finding(place, "duplicate", "warning", f"the same as line {first.line}")
        else:
            yield Finding(place, "test-in-train", "error", f"the same as {first}")
