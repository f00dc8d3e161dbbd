"""`check` tells what a model will see of an environment, and what it will not."""

from __future__ import annotations

from conformance.observation_environments import (
    BrowserGymAction,
    BrowserGymEnvironment,
    BrowserGymObservation,
)
from conformance.test_ludus_client_on_openenv_server import their_server
from ludus_process import run_ludus

from ludus.check import run_checks

CHECK = "what the model sees"


async def detail_of(spec: str) -> str:
    report = await run_checks(spec, seeds=2)
    (finding,) = [finding for finding in report.findings if finding.check == CHECK]
    assert finding.verdict == "pass"
    return finding.detail


def fields(detail: str, begin: str) -> set[str]:
    (line,) = [line for line in detail.splitlines() if line.startswith(begin)]
    return {item.strip().partition(" ")[0] for item in line.removeprefix(begin).split(",")}


async def test_shown_and_hidden_fields_are_listed() -> None:
    with their_server(BrowserGymEnvironment, BrowserGymAction, BrowserGymObservation) as url:
        detail = await detail_of(url)
    assert fields(detail, "shown:") >= {"goal", "text", "url", "screenshot", "error"}
    assert "screenshot (image)" in detail
    assert fields(detail, "not shown:") >= {"metadata", "axtree_txt"}
    assert "  goal: Click the button." in detail.splitlines()


async def test_answer_is_shown_at_the_end() -> None:
    detail = await detail_of("reasoning_gym:chain_sum")
    assert fields(detail, "shown:") == {"question", "score", "correct_answer"}
    assert fields(detail, "not shown:") == {"dataset_metadata"}


async def test_visibility_is_skipped_if_no_episode_can_be_played() -> None:
    report = await run_checks("check.test_visibility:Crashing", seeds=2)
    (finding,) = [finding for finding in report.findings if finding.check == CHECK]
    assert finding.verdict == "skip" and report.failures


def test_command_quotes_the_first_observation() -> None:
    done = run_ludus("check", "catch", "--seeds", "2")
    assert done.returncode == 0
    assert "A ball falls one row with every move." in done.stdout


class Crashing(BrowserGymEnvironment):
    """Breaks with its first step."""

    def step(self, action: BrowserGymAction, **kwargs: object) -> BrowserGymObservation:
        raise RuntimeError("no browser")
