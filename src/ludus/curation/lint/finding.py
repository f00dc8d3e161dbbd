"""What a check found: where, how bad, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ludus.curation.lint.rows import SourceLocation
from ludus.policy.chat.chat_format import FAMILIES

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")

ADVICE = {
    "malformed": "Repair the row: no trainer can read it.",
    "no-assistant": "Leave the row out: there is nothing in it to learn.",
    "roles": "Put the turns in order: system, user, then assistant and tools by turns.",
    "unknown-tool": "Offer the tool in `tools`, or leave the row out.",
    "no-tools": "Add the tools that were offered as `tools`.",
    "tool-schema": "Repair the tool's parameters: they are no JSON schema.",
    "arguments-not-object": "Leave the row out: it teaches calls that no tool can read.",
    "arguments-unfit": "Leave the row out, or repair the call: it teaches calls that are refused.",
    "unanswered-call": "Add the tool's answer, or end the row with the call.",
    "answer-without-call": "Give the answer the id of its call, or leave it out.",
    "answer-in-prompt": "Look whether the prompt gives the answer away.",
    "duplicate": "Keep one of them, unless it is meant to count twice.",
    "test-in-train": "Split by task: a score on rows that were trained on says nothing.",
    "equal-sides": "Leave the pair out: there is nothing to prefer.",
    "empty-tools": "Write null instead of an empty list.",
    "environment-tokens": "Train with `ludus train dpo`, which masks them; others may not.",
    "template-unmarked": f"Take a chat model of a known family ({', '.join(FAMILIES)}, and what "
    "TRL has templates for), or give it a chat template with {% generation %} marks.",
    "template-refuses": "Take another student, or write the row as its template wants it.",
    "no-loss": "Leave the row out: training with it raises.",
    "stop-token": "Move the end-of-turn token inside {% generation %} in the template.",
    "prompt-swallows": "Take the white space off the beginning of the reply.",
    "too-long": "Raise --max-length, or leave the longest rows out.",
    "cut-off": "Raise --max-length: of these rows nothing is trained.",
    "quoted-arguments": "Write arguments as objects, not as strings of JSON.",
    "content-as-list": "Write content as one string, or take a student that takes parts.",
    "drops-system-prompt": "Put the system prompt into the first user turn.",
    "drops-tools": "Describe the tools in the prompt, or take a student that knows tools.",
    "drops-tool-calls": "Write calls as text, or take a student that knows tools.",
    "drops-tool-results": "Give results as user turns, or take a student that knows tools.",
    "drops-reasoning": "Take a student that reasons, or leave the reasoning out.",
    "drops-image": "Take a student that sees images, or leave these rows out.",
    "drops-user-text": "Look at the template: it does not show what the user said.",
    "drops-assistant-text": "Look at the template: it does not show all that was said.",
}
"""What to do about each check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, in one row."""

    location: SourceLocation
    check: str
    level: Level
    message: str
