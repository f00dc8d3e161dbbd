"""The checks, one after the other: each is a promise that training will rely on."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from jsonschema import Draft202012Validator
from pydantic_core import to_json

from ludus.agents.random_agent import random_call
from ludus.check.advice import ADVICE_BY_CHECK, FIX_LINE, SERVER_LOG, TOO_SLOW
from ludus.check.episodes import EpisodeFailed, EpisodePlayer, Transcript, TurnOrder
from ludus.check.findings import CheckFinding, CheckReport
from ludus.check.visibility import describe_visibility
from ludus.client.endpoint import Endpoint, LocalEndpoint, connect
from ludus.client.remote_session import fetch_json_object
from ludus.client.session import Session
from ludus.client.websocket import WebSocketClient
from ludus.environment.registry import find_environment, is_url
from ludus.environment.spec import EnvSpec
from ludus.errors import (
    BadEnvironment,
    ExecutionFailed,
    FactoryFailed,
    LudusError,
    SessionError,
)

CHECK_TIMEOUT_S = 60.0
"""Seconds for one check: what hangs must not hang the doctor."""
_ERROR_LOCATION = re.compile(r"\S+\.py:\d+ in \S+(?=: )")
"""How an exception in the author's code begins: `my_env.py:17 in guess: …`."""


class CheckFailed(Exception):
    """A promise that is not kept; `advice` where it is not the check's usual one."""

    def __init__(self, detail: str, advice: str = "") -> None:
        super().__init__(detail)
        self.advice = advice


class CheckSkipped(Exception):
    """A promise that was not made, or cannot be put to the test here."""


async def run_checks(
    spec: str,
    *,
    seeds: int = 5,
    sessions: int = 2,
    token: str | None = None,
    on_check: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Put an environment, or a server, through every check; `watch` is told the next one's name."""
    began = time.monotonic()
    findings: list[CheckFinding] = []
    try:
        patient = await _EnvironmentChecks.connect(
            spec, seeds=seeds, sessions=sessions, token=token
        )
    except BadEnvironment as error:
        advice = error.advice or FIX_LINE
        findings.append(_failure("starts", error.problem, advice))
    else:
        for name, test in patient.checks():
            on_check(name)
            findings.append(
                _skip_if_reported(await _run_check(name, test, remote=is_url(spec)), findings)
            )
            if name == "starts" and findings[-1].verdict == "fail":
                break
    return CheckReport(spec=spec, findings=tuple(findings), seconds=time.monotonic() - began)


async def _run_check(
    name: str, test: Callable[[], Awaitable[str]], *, remote: bool
) -> CheckFinding:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return CheckFinding(check=name, verdict="pass", detail=await test())
    except CheckSkipped as reason:
        return CheckFinding(check=name, verdict="skip", detail=str(reason))
    except CheckFailed as reason:
        return _failure(name, str(reason), reason.advice)
    except TimeoutError:
        return _failure(name, f"not finished after {CHECK_TIMEOUT_S:g} s", TOO_SLOW)
    except (EpisodeFailed, ExecutionFailed, FactoryFailed) as error:
        unseen = remote and not _ERROR_LOCATION.match(str(error))
        advice = getattr(error, "advice", "") or (SERVER_LOG if unseen else "")
        return _failure(name, str(error), advice)
    except LudusError as error:
        return _failure(name, f"{type(error).__name__}: {error}")


def _failure(name: str, detail: str, advice: str = "") -> CheckFinding:
    usual = FIX_LINE if _ERROR_LOCATION.match(detail) else ADVICE_BY_CHECK[name]
    return CheckFinding(check=name, verdict="fail", detail=detail, advice=advice or usual)


def _skip_if_reported(finding: CheckFinding, before: Sequence[CheckFinding]) -> CheckFinding:
    """An error that stops several checks is a failure of the first one alone."""
    if finding.verdict != "fail":
        return finding
    for earlier in before:
        if earlier.verdict == "fail" and _is_same_error(earlier.detail, finding.detail):
            detail = f"not checked: see {earlier.check!r}"
            return CheckFinding(check=finding.check, verdict="skip", detail=detail)
    return finding


def _is_same_error(one: str, other: str) -> bool:
    """Errors at the same line are the same, though their messages may name different values."""
    at, there = _ERROR_LOCATION.match(one), _ERROR_LOCATION.match(other)
    return at.group() == there.group() if at and there else one == other


class _EnvironmentChecks:
    """One environment under examination."""

    def __init__(
        self,
        endpoint: Endpoint,
        contract: EnvSpec | None,
        schemas: dict[str, Any],
        *,
        seeds: int,
        sessions: int,
    ) -> None:
        self._endpoint = endpoint
        self._contract = contract
        self._schemas = schemas
        self._seeds = range(seeds)
        self._sessions = sessions
        self._episodes: dict[int, Transcript] = {}

    @classmethod
    async def connect(
        cls, spec: str, *, seeds: int, sessions: int, token: str | None
    ) -> _EnvironmentChecks:
        endpoint = connect(spec, token=token)
        if isinstance(endpoint, LocalEndpoint):
            contract: EnvSpec | None = endpoint.env_spec
            assert contract is not None
            schemas = {
                "observation": contract.observation.model_json_schema(),
                "reset_observation": contract.reset_observation.model_json_schema(),
            }
        else:
            server = WebSocketClient(spec, token=token)
            schemas = await fetch_json_object(server, "/schema")
            contract = _find_local((await fetch_json_object(server, "/metadata")).get("name"))
        return cls(endpoint, contract, schemas, seeds=seeds, sessions=sessions)

    def checks(self) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
        return [
            ("starts", self.check_starts),
            ("resets", self.check_resets),
            ("plays an episode", self.check_episode),
            ("observations fit the schema", self.check_schema),
            (
                "what the model sees",
                lambda: describe_visibility(self._play_once(self._seeds[0])),
            ),
            ("same seed, same episode", self.check_same_seed),
            ("different seeds differ", self.check_seeds_differ),
            ("rewards are finite numbers", self.check_rewards),
            ("step before reset is an error", self.check_step_before_reset),
            ("step after the end is an error", self.check_step_after_end),
            ("enough sessions at once", self.check_capacity),
            ("sessions do not see each other", self.check_isolation),
            ("the oracle reaches the top reward", self.check_oracle),
        ]

    async def check_starts(self) -> str:
        async with self._endpoint.session() as session:
            if not session.tools:
                raise CheckFailed("it offers no tool, so a model could do nothing")
            return "tools: " + ", ".join(tool.name for tool in session.tools)

    async def check_resets(self) -> str:
        async with self._endpoint.session() as session:
            result = await session.reset(seed=0)
            if result.done:
                raise CheckFailed("the episode is over as soon as it begins")
            if not result.content:
                raise CheckFailed("the first observation is empty: a model would be shown nothing")
            return f"first observation: {len(str(result.content))} characters"

    async def check_episode(self) -> str:
        episode = await self._play_once(self._seeds[0])
        player = "the oracle" if EpisodePlayer(self._contract).is_oracle else "random calls"
        end = "to the end" if episode.done else "without an end"
        return f"{len(episode.actions)} steps by {player}, {end}"

    async def check_schema(self) -> str:
        episode = await self._play_once(self._seeds[0])
        first = self._schemas.get("reset_observation") or self._schemas.get("observation", {})
        _validate(episode.results[0].observation, first)
        checked = 1
        for result in episode.results[1:]:
            if result.observation and "tool_name" not in result.observation:
                _validate(result.observation, self._schemas.get("observation", {}))
                checked += 1
        return f"{checked} observations"

    async def check_same_seed(self) -> str:
        for seed in self._seeds:
            async with self._player_session() as (player, session):
                again = await player.play(session, seed)
            first = await self._play_once(seed)
            if _serialize(first) != _serialize(again):
                raise CheckFailed(f"seed {seed} gave two different episodes")
        return f"{len(self._seeds)} seeds, played twice"

    async def check_seeds_differ(self) -> str:
        kinds = set()
        for seed in self._seeds:
            async with self._player_session() as (player, session):
                kinds.add(_serialize(await player.play(session, seed, agent_seed=0)))
        if len(kinds) < 2:
            raise CheckFailed(
                f"{len(self._seeds)} seeds gave the same episode: is the seed ignored?"
            )
        return f"{len(kinds)} different episodes from {len(self._seeds)} seeds"

    async def check_rewards(self) -> str:
        rewards = [r for seed in self._seeds for r in (await self._play_once(seed)).rewards]
        if not all(math.isfinite(reward) for reward in rewards):
            raise CheckFailed(f"a reward was {next(r for r in rewards if not math.isfinite(r))}")
        if not rewards:
            raise CheckFailed("no step of any episode was scored")
        return f"{len(rewards)} rewards from {min(rewards):g} to {max(rewards):g}"

    async def check_step_before_reset(self) -> str:
        if self._contract is not None and not getattr(self._contract.cls, "needs_reset", True):
            raise CheckSkipped("it may be stepped before a reset")
        async with self._endpoint.session() as session:
            return await _expect_error(session, "a step before the first reset was taken")

    async def check_step_after_end(self) -> str:
        async with self._player_session() as (player, session):
            episode = await player.play(session, self._seeds[0])
            if not episode.done:
                raise CheckSkipped(f"the episode did not end within {len(episode.actions)} steps")
            return await _expect_error(session, "a step after the end was taken")

    async def check_capacity(self) -> str:
        async with AsyncExitStack() as stack:
            for _ in range(self._sessions):
                session = await stack.enter_async_context(self._endpoint.session())
                await session.reset(seed=0)
        return f"{self._sessions} at once"

    async def check_isolation(self) -> str:
        """Two episodes, move by move in turn, must be what they are when played alone."""
        seeds = list(self._seeds)[:2]
        turns = TurnOrder(len(seeds))

        async def alternating(place: int) -> Transcript:
            async with self._player_session() as (player, session):
                try:
                    return await player.play(session, seeds[place], turn=turns.waiter_for(place))
                finally:
                    await turns.leave(place)

        together = await asyncio.gather(*(alternating(place) for place in range(len(seeds))))
        for seed, episode in zip(seeds, together, strict=True):
            if _serialize(episode) != _serialize(await self._play_once(seed)):
                raise CheckFailed(f"seed {seed} went another way while another session was playing")
        return "two episodes in turn, as when played alone"

    async def check_oracle(self) -> str:
        contract = self._contract
        top = getattr(contract.cls, "max_reward", None) if contract else None
        if top is None or not EpisodePlayer(contract).is_oracle:
            raise CheckSkipped("it has no oracle" if contract else "not known to this machine")
        for seed in self._seeds:
            total = sum((await self._play_once(seed)).rewards)
            if not math.isclose(total, top, abs_tol=1e-9):
                raise CheckFailed(f"seed {seed}: {total:g} instead of {top:g}")
        return f"{top:g} on {len(self._seeds)} seeds"

    async def _play_once(self, seed: int) -> Transcript:
        if seed not in self._episodes:
            async with self._player_session() as (player, session):
                self._episodes[seed] = await player.play(session, seed)
        return self._episodes[seed]

    @asynccontextmanager
    async def _player_session(self) -> AsyncIterator[tuple[EpisodePlayer, Session]]:
        async with self._endpoint.session() as session:
            yield EpisodePlayer(self._contract), session


def _find_local(name: Any) -> EnvSpec | None:
    """The environment of that name on this machine, whose oracle can then play the server's."""
    try:
        return find_environment(name) if isinstance(name, str) and not is_url(name) else None
    except LudusError:
        return None


async def _expect_error(session: Session, message: str) -> str:
    call = random_call(session.tools, random.Random(0))
    try:
        result = await session.call(call.name, call.arguments)
    except SessionError as error:
        return str(error)
    if result.error:
        return result.error
    raise CheckFailed(message)


def _validate(observation: dict[str, Any], schema: dict[str, Any]) -> None:
    for error in Draft202012Validator(schema).iter_errors(observation):
        where = ".".join(str(part) for part in error.absolute_path) or "observation"
        raise CheckFailed(f"{where}: {error.message[:200]}")


def _serialize(episode: Transcript) -> bytes:
    return to_json(episode.as_comparable())
