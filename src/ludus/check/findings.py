"""Findings of the checks, as `ludus check --json` prints them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from ludus.check.advice import ADVICE_BY_CHECK, FIX_LINE

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
