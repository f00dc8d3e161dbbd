"""Runs the checks of an environment one after the other and collects their findings."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from ludus.check.checks import CHECKS, CheckFailed, CheckSkipped, EnvironmentChecks
from ludus.check.episodes import EpisodeFailed
from ludus.client.endpoint import connect
from ludus.data.config import check_at_least
from ludus.environment.registry import is_remote
from ludus.errors import BadEnvironment, ExecutionFailed, FactoryFailed, LudusError

FIX_LINE = "Fix that line; `ludus check --debug` prints the traceback."
SERVER_LOG = "The server's log names the file and the line."
TOO_SLOW = "Find the call that does not return, and give it a timeout."
ERROR_LOCATION = re.compile(r"\S+\.py:\d+ in \S+(?=: )")
"""Start of an exception in the environment's code: `my_env.py:17 in guess: …`."""


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


CHECK_TIMEOUT_S = 60.0


async def run_checks(
    spec: str,
    *,
    seeds: int = 5,
    sessions: int = 2,
    token: str | None = None,
    on_check: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Run all checks on an environment or a server; `on_check` gets the name of each one first."""
    check_at_least("seeds", seeds, 2)
    check_at_least("sessions", sessions, 1)
    start = time.monotonic()
    findings: list[CheckFinding] = []
    async with AsyncExitStack() as stack:
        try:
            endpoint = await stack.enter_async_context(connect(spec, token=token))
            checks = EnvironmentChecks(endpoint, seeds=seeds, sessions=sessions)
            await checks.load_schemas(token)
        except BadEnvironment as error:
            findings.append(_failed("starts", error.problem, error.advice or FIX_LINE))
        else:
            for name in CHECKS:
                on_check(name)
                finding = await _run_check(name, checks, remote=is_remote(spec))
                if finding.verdict == "fail":
                    # Errors at the same line count as the same, though their values may differ.
                    reason = _error_of(finding)
                    for earlier in findings:
                        if earlier.verdict == "fail" and _error_of(earlier) == reason:
                            detail = f"not checked: see {earlier.check!r}"
                            finding = CheckFinding(check=name, verdict="skip", detail=detail)
                            break
                findings.append(finding)
                if name == "starts" and findings[-1].verdict == "fail":
                    break
    return CheckReport(spec=spec, findings=tuple(findings), seconds=time.monotonic() - start)


async def _run_check(name: str, checks: EnvironmentChecks, *, remote: bool) -> CheckFinding:
    check, _ = CHECKS[name]
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return CheckFinding(check=name, verdict="pass", detail=await check(checks))
    except CheckFailed as failure:
        return _failed(name, str(failure))
    except CheckSkipped as reason:
        return CheckFinding(check=name, verdict="skip", detail=str(reason))
    except TimeoutError:
        return _failed(name, f"not finished after {CHECK_TIMEOUT_S:g} s", TOO_SLOW)
    except (EpisodeFailed, ExecutionFailed, FactoryFailed) as error:
        if isinstance(error.__cause__, LudusError):
            # Raised by the environment on purpose: the message itself says what to do.
            return CheckFinding(check=name, verdict="fail", detail=str(error))
        advice = getattr(error, "advice", "")
        if remote and not advice and not ERROR_LOCATION.match(str(error)):
            advice = SERVER_LOG
        return _failed(name, str(error), advice)
    except LudusError as error:
        return _failed(name, f"{type(error).__name__}: {error}")


def _failed(name: str, detail: str, advice: str = "") -> CheckFinding:
    """The finding of a check that failed, with the advice of the check by default."""
    default = FIX_LINE if ERROR_LOCATION.match(detail) else CHECKS[name][1]
    return CheckFinding(check=name, verdict="fail", detail=detail, advice=advice or default)


def _error_of(finding: CheckFinding) -> str:
    location = ERROR_LOCATION.match(finding.detail)
    return location.group() if location else finding.detail
