"""Findings of the checks, as `ludus check --json` prints them, and advice for each that fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

ERROR_LOCATION = re.compile(r"\S+\.py:\d+ in \S+(?=: )")
"""Start of an exception in the environment's code: `my_env.py:17 in guess: …`."""


class CheckFinding(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    check: str
    verdict: Literal["pass", "warn", "fail", "skip"]
    detail: str = ""
    advice: str = ""
    """What to do about a failure or a warning."""


class CheckReport(BaseModel):
    """All findings about one environment."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    spec: str
    findings: tuple[CheckFinding, ...]
    seconds: float

    # mypy does not support decorators on top of @property.
    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[CheckFinding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "fail")


def failed_finding(name: str, detail: str, advice: str = "") -> CheckFinding:
    """The finding of a check that failed; without advice, with that for the check."""
    default = FIX_LINE if ERROR_LOCATION.match(detail) else ADVICE_BY_CHECK[name]
    return CheckFinding(check=name, verdict="fail", detail=detail, advice=advice or default)


def skip_if_reported(finding: CheckFinding, before: Sequence[CheckFinding]) -> CheckFinding:
    """Turn a failure into a skip if an earlier check failed by the same error.

    Errors at the same line count as the same, though their messages may contain other values.
    """
    if finding.verdict != "fail":
        return finding
    location = ERROR_LOCATION.match(finding.detail)
    for earlier in before:
        if earlier.verdict != "fail":
            continue
        earlier_location = ERROR_LOCATION.match(earlier.detail)
        if location and earlier_location:
            is_same = location.group() == earlier_location.group()
        else:
            is_same = finding.detail == earlier.detail
        if is_same:
            detail = f"not checked: see {earlier.check!r}"
            return CheckFinding(check=finding.check, verdict="skip", detail=detail)
    return finding


FIX_LINE = "Fix that line; `ludus check --debug` prints the traceback."
SERVER_LOG = "The server's log names the file and the line."
TOO_SLOW = "Find the call that does not return, and give it a timeout."
HIGH_FLOOR = (
    "More than half of the reward is had without solving anything: judge a model by how far it is "
    "above this floor, or give less for what is only partly right."
)
RETURN_MOVE = "Return the next ToolCall (or action) from oracle() until the episode is done."

ADVICE_BY_CHECK = {
    "starts": "Make the constructor work without arguments, and decorate a method with @tool.",
    "resets": "Return the first observation from reset(), with done=False.",
    "plays an episode": "Step through it with `ludus play`, and fix the error.",
    "observations fit the schema": (
        "Return what the observation class declares, or correct its fields."
    ),
    "what the model sees": (
        "Return observations of text, numbers, lists and images, which can be shown to a model."
    ),
    "same seed, same episode": (
        "Draw everything from a random.Random(seed) created in reset(), never from the global "
        "generator, the clock or the order of a set."
    ),
    "different seeds differ": "Select the task in reset() by its seed.",
    "rewards are finite numbers": (
        "Pass a finite number to self.finish(reward) or self.award(reward) in every episode."
    ),
    "progress grows towards the goal": (
        "Return from progress() how near the episode is to its goal, higher at its end than after "
        "reset(), or do not override it."
    ),
    "step before reset is an error": "Raise an exception in step() before reset().",
    "step after the end is an error": "Raise an exception in step() once the episode is done.",
    "enough sessions at once": ("Serve with a larger `max_sessions`, or require fewer `sessions`."),
    "sessions do not see each other": (
        "Keep all state in self and set it in reset(): none in the class, the module or files."
    ),
    "the oracle reaches the top reward": (
        "Correct oracle(), or set max_reward in the class to the best return of an episode."
    ),
    "weak players score below the oracle": (
        "Give no reward for what solves nothing: try the reward on empty, constant, random and "
        "copied answers. In a game, choose a stronger opponent. If any action shall be rewarded, "
        "set rewards_any_action = True in the class."
    ),
}
