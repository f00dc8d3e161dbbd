"""Findings of the checks, as `ludus check --json` prints them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field


class CheckFinding(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    check: str
    verdict: Literal["pass", "fail", "skip"]
    detail: str = ""
    advice: str = ""
    """What to do about a failure."""


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
