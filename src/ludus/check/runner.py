"""Runs the checks of an environment one after the other and collects their findings."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from ludus.check.advice import ADVICE_BY_CHECK, FIX_LINE, SERVER_LOG, TOO_SLOW
from ludus.check.checks import CheckFailed, CheckSkipped, EnvironmentChecks
from ludus.check.episodes import EpisodeFailed
from ludus.check.findings import CheckFinding, CheckReport
from ludus.environment.registry import is_url
from ludus.errors import BadEnvironment, ExecutionFailed, FactoryFailed, LudusError

CHECK_TIMEOUT_S = 60.0
_ERROR_LOCATION = re.compile(r"\S+\.py:\d+ in \S+(?=: )")
"""Start of an exception in the environment's code: `my_env.py:17 in guess: …`."""


async def run_checks(
    spec: str,
    *,
    seeds: int = 5,
    sessions: int = 2,
    token: str | None = None,
    on_check: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Run all checks on an environment or a server; `on_check` gets the name of each one first."""
    start = time.monotonic()
    findings: list[CheckFinding] = []
    try:
        checks = await EnvironmentChecks.connect(spec, seeds=seeds, sessions=sessions, token=token)
    except BadEnvironment as error:
        findings.append(_failed_finding("starts", error.problem, error.advice or FIX_LINE))
    else:
        for name, check in checks.named_checks():
            on_check(name)
            finding = await _run_check(name, check, remote=is_url(spec))
            findings.append(_skip_if_reported(finding, findings))
            if name == "starts" and findings[-1].verdict == "fail":
                break
    return CheckReport(spec=spec, findings=tuple(findings), seconds=time.monotonic() - start)


async def _run_check(
    name: str, check: Callable[[], Awaitable[str]], *, remote: bool
) -> CheckFinding:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return CheckFinding(check=name, verdict="pass", detail=await check())
    except CheckSkipped as reason:
        return CheckFinding(check=name, verdict="skip", detail=str(reason))
    except CheckFailed as reason:
        return _failed_finding(name, str(reason))
    except TimeoutError:
        return _failed_finding(name, f"not finished after {CHECK_TIMEOUT_S:g} s", TOO_SLOW)
    except (EpisodeFailed, ExecutionFailed, FactoryFailed) as error:
        advice = getattr(error, "advice", "")
        if remote and not advice and not _ERROR_LOCATION.match(str(error)):
            advice = SERVER_LOG
        return _failed_finding(name, str(error), advice)
    except LudusError as error:
        return _failed_finding(name, f"{type(error).__name__}: {error}")


def _failed_finding(name: str, detail: str, advice: str = "") -> CheckFinding:
    default = FIX_LINE if _ERROR_LOCATION.match(detail) else ADVICE_BY_CHECK[name]
    return CheckFinding(check=name, verdict="fail", detail=detail, advice=advice or default)


def _skip_if_reported(finding: CheckFinding, before: Sequence[CheckFinding]) -> CheckFinding:
    """Turn a failure into a skip if an earlier check failed by the same error.

    Errors at the same line count as the same, though their messages may contain other values.
    """
    if finding.verdict != "fail":
        return finding
    location = _ERROR_LOCATION.match(finding.detail)
    for earlier in before:
        if earlier.verdict != "fail":
            continue
        earlier_location = _ERROR_LOCATION.match(earlier.detail)
        if location and earlier_location:
            is_same = location.group() == earlier_location.group()
        else:
            is_same = finding.detail == earlier.detail
        if is_same:
            detail = f"not checked: see {earlier.check!r}"
            return CheckFinding(check=finding.check, verdict="skip", detail=detail)
    return finding
