"""Runs the checks of an environment one after the other and collects their findings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from ludus.check.checks import CheckFailed, CheckSkipped, CheckWarned, EnvironmentChecks
from ludus.check.episodes import EpisodeFailed
from ludus.check.findings import (
    ERROR_LOCATION,
    FIX_LINE,
    HIGH_FLOOR,
    SERVER_LOG,
    TOO_SLOW,
    CheckFinding,
    CheckReport,
    failed_finding,
    skip_if_reported,
)
from ludus.client.endpoint import connect
from ludus.data.config import check_at_least
from ludus.environment.registry import is_remote
from ludus.errors import BadEnvironment, ExecutionFailed, FactoryFailed, LudusError

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
            checks = await EnvironmentChecks.connect(
                endpoint, seeds=seeds, sessions=sessions, token=token
            )
        except BadEnvironment as error:
            findings.append(failed_finding("starts", error.problem, error.advice or FIX_LINE))
        else:
            for name, check in checks.named_checks():
                on_check(name)
                finding = await _run_check(name, check, remote=is_remote(spec))
                findings.append(skip_if_reported(finding, findings))
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
    except CheckWarned as reason:
        return CheckFinding(check=name, verdict="warn", detail=str(reason), advice=HIGH_FLOOR)
    except CheckFailed as reason:
        return failed_finding(name, str(reason))
    except TimeoutError:
        return failed_finding(name, f"not finished after {CHECK_TIMEOUT_S:g} s", TOO_SLOW)
    except (EpisodeFailed, ExecutionFailed, FactoryFailed) as error:
        if isinstance(error.__cause__, LudusError):
            # Raised by the environment on purpose: the message itself says what to do.
            return CheckFinding(check=name, verdict="fail", detail=str(error))
        advice = getattr(error, "advice", "")
        if remote and not advice and not ERROR_LOCATION.match(str(error)):
            advice = SERVER_LOG
        return failed_finding(name, str(error), advice)
    except LudusError as error:
        return failed_finding(name, f"{type(error).__name__}: {error}")
