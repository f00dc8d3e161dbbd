"""The checks: each verifies one property that training relies on."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from itertools import zip_longest
from statistics import fmean

from jsonschema import Draft202012Validator

from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent, random_call
from ludus.check.episodes import MAX_STEPS, CheckTranscript, offers_oracle, play_check_episode
from ludus.check.reward_audit import FIRST_SEEDS, HARD_LIMIT_S, MAX_SEEDS, audit_rewards
from ludus.client.endpoint import Endpoint, LocalEndpoint
from ludus.client.server_http import fetch_json_object
from ludus.client.session import Session
from ludus.client.websocket import WebSocketClient
from ludus.data.interval_estimates import MIN_SAMPLES
from ludus.data.messages import content_text
from ludus.data.tool_schema import JsonObject
from ludus.environment.registry import find_environment, is_remote
from ludus.environment.spec import EnvSpec
from ludus.errors import CapacityReached, InvalidAction, LudusError, SessionError
from ludus.protocol.observation_text import build_view

MAX_LINES, MAX_CHARACTERS = 12, 800


class CheckFailed(Exception):
    """The environment does not have the property."""


class CheckSkipped(Exception):
    """The property does not apply to the environment, or cannot be checked here."""


class EnvironmentChecks:
    """The checks of one environment. Each returns its findings, or raises."""

    def __init__(self, endpoint: Endpoint, *, seeds: int, sessions: int) -> None:
        self._endpoint = endpoint
        self._env_spec: EnvSpec | None = None
        self._schemas: JsonObject = {}
        self._seeds = range(seeds)
        self._sessions = sessions
        self._episodes: dict[int, CheckTranscript] = {}
        self._oracle_offered: bool | None = None

    async def load_schemas(self, token: str | None) -> None:
        """Find the class of the environment, if it is installed here, and its schemas."""
        if isinstance(self._endpoint, LocalEndpoint):
            spec = self._env_spec = self._endpoint.env_spec
            self._schemas = {
                "observation": spec.observation.model_json_schema(),
                "reset_observation": spec.reset_observation.model_json_schema(),
            }
            return
        url = await self._endpoint.server_url()
        assert url is not None
        server = WebSocketClient(url, token=token)
        self._schemas = await fetch_json_object(server, "/schema")
        # OpenEnv's servers build an environment for /metadata.
        with suppress(LudusError):
            name = (await fetch_json_object(server, "/metadata")).get("name")
            if isinstance(name, str) and not is_remote(name):
                # If it is installed here too, its oracle can play the server's tasks.
                self._env_spec = find_environment(name)

    async def check_starts(self) -> str:
        async with self._endpoint.session() as session:
            if not session.tools:
                raise CheckFailed("it offers no tools")
            local = self._endpoint if isinstance(self._endpoint, LocalEndpoint) else None
            note = local and local.env_spec.note
            tools = "tools: " + ", ".join(tool.name for tool in session.tools)
            return f"{tools}. {note}" if note else tools

    async def check_resets(self) -> str:
        async with self._endpoint.session() as session:
            result = await session.reset(seed=0)
            if result.done:
                raise CheckFailed("the episode is over after reset()")
            if not result.content:
                raise CheckFailed("the first observation is empty")
            return f"first observation: {len(str(result.content))} characters"

    async def check_episode(self) -> str:
        episode = await self._play_once(self._seeds[0])
        player = "the oracle" if await self._has_oracle() else "random calls"
        end = "to the end" if episode.done else "not ended"
        return f"{len(episode.actions)} steps by {player}, {end}"

    async def check_schema(self) -> str:
        episode = await self._play_once(self._seeds[0])
        first = self._schemas.get("reset_observation") or self._schemas.get("observation", {})
        _validate_schema(episode.results[0].observation, first)
        checked = 1
        for result in episode.results[1:]:
            if result.observation and "tool_name" not in result.observation:
                _validate_schema(result.observation, self._schemas.get("observation", {}))
                checked += 1
        return f"{checked} observations"

    async def check_visibility(self) -> str:
        """Return the fields that an episode showed and hid, and its first observation as text."""
        episode = await self._play_once(self._seeds[0])
        shown: dict[str, str] = {}
        hidden: dict[str, None] = {}
        for result in episode.results:
            view = build_view(result.observation)
            images = {name.partition(".")[0] for name, _ in view.images}
            shown |= {name: f"{name} (image)" if name in images else name for name in view.shown}
            hidden |= dict.fromkeys(view.hidden)
        lines = [f"shown: {', '.join(shown.values()) or 'nothing'}"]
        never_shown = [name for name in hidden if name not in shown]
        if never_shown:
            lines.append(f"not shown: {', '.join(never_shown)}")
        if episode.results and (text := content_text(episode.results[0].content)):
            excerpt = text[:MAX_CHARACTERS].splitlines()[:MAX_LINES]
            lines.append("first observation:")
            lines += [f"  {line}" for line in excerpt]
            if "\n".join(excerpt) != text.rstrip("\n"):
                lines.append("  …")
        return "\n".join(lines)

    async def check_same_seed(self) -> str:
        for seed in self._seeds:
            async with self._endpoint.session() as session:
                again = await self._play(session, seed)
            first = await self._play_once(seed)
            if first.serialize() != again.serialize():
                raise CheckFailed(f"seed {seed} gave two different episodes")
        return f"{len(self._seeds)} seeds, played twice"

    async def check_seeds_differ(self) -> str:
        episodes = set()
        for seed in self._seeds:
            async with self._endpoint.session() as session:
                episodes.add((await self._play(session, seed, agent_seed=0)).serialize())
        if len(episodes) < 2:
            if not await self._has_oracle():
                # Hidden tasks may answer the same to all who do not solve them.
                raise CheckSkipped("random calls were answered the same with every seed")
            raise CheckFailed(
                f"{len(self._seeds)} seeds gave the same episode: is the seed ignored?"
            )
        return f"{len(episodes)} different episodes from {len(self._seeds)} seeds"

    async def check_rewards(self) -> str:
        rewards = [r for seed in self._seeds for r in (await self._play_once(seed)).rewards]
        if not all(math.isfinite(reward) for reward in rewards):
            raise CheckFailed(f"a reward was {next(r for r in rewards if not math.isfinite(r))}")
        if not rewards:
            raise CheckFailed("no step of any episode was scored")
        return f"{len(rewards)} rewards from {min(rewards):g} to {max(rewards):g}"

    async def check_progress(self) -> str:
        """Compare the ends of the oracle's episodes with their starts; the runner checks bounds.

        Means are compared, because a task may begin at its goal; and only if the oracle reaches
        the top in every episode.
        """
        progress: list[list[float]] = []
        for seed in self._seeds:
            results = (await self._play_once(seed)).results
            progress.append([each.progress for each in results if each.progress is not None])
            if not progress[-1]:
                raise CheckSkipped("it has no progress()")
            if results[0].progress is None:
                raise CheckFailed(f"seed {seed}: progress() returned None after reset()")
        max_reward = getattr(self._env_spec and self._env_spec.cls, "max_reward", None)
        if max_reward is not None and await self._has_oracle():
            start = fmean(values[0] for values in progress)
            end = fmean(values[-1] for values in progress)
            if end <= start:
                raise CheckFailed(f"the oracle went from {start:g} to {end:g} on average")
        seen = [value for values in progress for value in values]
        return f"{len(seen)} values from {min(seen):g} to {max(seen):g}"

    async def check_step_before_reset(self) -> str:
        if self._env_spec is not None and not getattr(self._env_spec.cls, "needs_reset", True):
            raise CheckSkipped("it allows steps before reset")
        async with self._endpoint.session() as session:
            return await _expect_error(session, "a step before the first reset raised no error")

    async def check_step_after_end(self) -> str:
        async with self._endpoint.session() as session:
            episode = await self._play(session, self._seeds[0])
            if not episode.done:
                raise CheckSkipped(f"the episode did not end within {len(episode.actions)} steps")
            return await _expect_error(session, "a step after the end raised no error")

    async def check_capacity(self) -> str:
        async with AsyncExitStack() as stack:
            for _ in range(self._sessions):
                session = await stack.enter_async_context(self._endpoint.session())
                await session.reset(seed=0)
        return f"{self._sessions} at once"

    async def check_isolation(self) -> str:
        """Repeat two episodes step by step in alternation; each must be as when played alone."""
        seeds = list(self._seeds)[:2]
        alone = [await self._play_once(seed) for seed in seeds]
        again = [CheckTranscript() for _ in seeds]
        try:
            async with self._endpoint.session() as first, self._endpoint.session() as second:
                sessions = (first, second)
                for session, seed, transcript in zip(sessions, seeds, again, strict=True):
                    transcript.results.append(await session.reset(seed=seed))
                for actions in zip_longest(*(each.actions for each in alone)):
                    for session, action, transcript in zip(sessions, actions, again, strict=True):
                        if action is not None:
                            transcript.actions.append(action)
                            # An action that was refused, and may be so again.
                            with suppress(InvalidAction):
                                transcript.results.append(await session.step(action))
        except CapacityReached:
            raise CheckSkipped(f"the server has no {len(seeds)} sessions at once") from None
        for seed, episode, expected in zip(seeds, again, alone, strict=True):
            if episode.serialize() != expected.serialize():
                raise CheckFailed(
                    f"seed {seed} gave another episode while a second session was in use"
                )
        return "two alternating episodes, as when played alone"

    async def check_oracle(self) -> str:
        env_spec = self._env_spec
        if env_spec is None or not await self._has_oracle():
            raise CheckSkipped("it has no oracle" if env_spec else "not installed here")
        max_reward = getattr(env_spec.cls, "max_reward", None)
        if max_reward is None:
            raise CheckSkipped("the top reward differs between episodes: max_reward is None")
        for seed in self._seeds:
            episode = await self._play_once(seed)
            total = episode.total_reward
            if not math.isclose(total, max_reward, abs_tol=1e-9):
                if not episode.done and len(episode.actions) == MAX_STEPS:
                    raise CheckSkipped(f"the oracle needs more than {MAX_STEPS} steps")
                raise CheckFailed(f"seed {seed}: {total:g} instead of {max_reward:g}")
        return f"{max_reward:g} on {len(self._seeds)} seeds"

    async def check_weak_players(self) -> str:
        """Play without trying to solve the task; without an oracle, compare with max_reward."""
        cls = self._env_spec.cls if self._env_spec is not None else None
        reason_to_skip, play_oracle = "", None
        if getattr(cls, "rewards_any_action", False):
            reason_to_skip = "it rewards any action by design"
        if await self._has_oracle():
            with suppress(CheckSkipped):
                # Fails again if the oracle does: it is no reference then.
                await self.check_oracle()
            play_oracle = self._play_once
        elif getattr(cls, "max_reward", None) is None:
            reason_to_skip = "it has neither an oracle nor a max_reward to compare with"
        seeds = max(len(self._seeds), FIRST_SEEDS)
        max_seeds = seeds if reason_to_skip else MAX_SEEDS
        async with self._endpoint.session() as session:
            audit = await audit_rewards(
                session, self._env_spec, play_oracle, seeds=seeds, max_seeds=max_seeds
            )
        if audit.seeds < MIN_SAMPLES:
            raise CheckSkipped(f"too slow: {audit.seeds} seeds in {HARD_LIMIT_S:g} s")
        if reason_to_skip:
            raise CheckSkipped(f"{reason_to_skip}: {audit.describe_best()}")
        if unclear := audit.describe_unclear():
            if play_oracle is not None and not (await self._play_once(0)).done:
                raise CheckSkipped(f"the oracle needs more than {MAX_STEPS} steps")
            raise CheckFailed(unclear)
        return audit.describe_best()

    async def _play_once(self, seed: int) -> CheckTranscript:
        if seed not in self._episodes:
            async with self._endpoint.session() as session:
                self._episodes[seed] = await self._play(session, seed)
        return self._episodes[seed]

    async def _play(
        self, session: Session, seed: int, *, agent_seed: int | None = None
    ) -> CheckTranscript:
        agent = OracleAgent() if await self._has_oracle() else RandomAgent()
        return await play_check_episode(session, self._env_spec, agent, seed, agent_seed=agent_seed)

    async def _has_oracle(self) -> bool:
        if self._oracle_offered is None:
            self._oracle_offered = await offers_oracle(self._env_spec)
        return self._oracle_offered


async def _expect_error(session: Session, message: str) -> str:
    call = random_call(session.tools, random.Random(0))
    try:
        result = await session.call(call.name, call.arguments)
    except SessionError as error:
        return str(error)
    if result.error:
        return result.error
    raise CheckFailed(message)


def _validate_schema(observation: JsonObject, schema: JsonObject) -> None:
    for error in Draft202012Validator(schema).iter_errors(observation):
        where = ".".join(str(part) for part in error.absolute_path) or "observation"
        raise CheckFailed(f"{where}: {error.message[:200]}")


CHECKS: Mapping[str, tuple[Callable[[EnvironmentChecks], Awaitable[str]], str]] = {
    "starts": (
        EnvironmentChecks.check_starts,
        "Make the constructor work without arguments, and decorate a method with @tool.",
    ),
    "resets": (
        EnvironmentChecks.check_resets,
        "Return the first observation from reset(), with done=False.",
    ),
    "plays an episode": (
        EnvironmentChecks.check_episode,
        "Step through it with `ludus play`, and fix the error.",
    ),
    "observations fit the schema": (
        EnvironmentChecks.check_schema,
        "Return what the observation class declares, or correct its fields.",
    ),
    "what the model sees": (
        EnvironmentChecks.check_visibility,
        "Return observations of text, numbers, lists and images, which can be shown to a model.",
    ),
    "same seed, same episode": (
        EnvironmentChecks.check_same_seed,
        "Draw everything from a random.Random(seed) created in reset(), never from the global "
        "generator, the clock or the order of a set.",
    ),
    "different seeds differ": (
        EnvironmentChecks.check_seeds_differ,
        "Select the task in reset() by its seed.",
    ),
    "rewards are finite numbers": (
        EnvironmentChecks.check_rewards,
        "Pass a finite number to self.finish(reward) or self.award(reward) in every episode.",
    ),
    "progress grows towards the goal": (
        EnvironmentChecks.check_progress,
        "Return from progress() how near the episode is to its goal, higher at its end than after "
        "reset(), or do not override it.",
    ),
    "step before reset is an error": (
        EnvironmentChecks.check_step_before_reset,
        "Raise an exception in step() before reset().",
    ),
    "step after the end is an error": (
        EnvironmentChecks.check_step_after_end,
        "Raise an exception in step() once the episode is done.",
    ),
    "enough sessions at once": (
        EnvironmentChecks.check_capacity,
        "Serve with a larger `max_sessions`, or require fewer `sessions`.",
    ),
    "sessions do not see each other": (
        EnvironmentChecks.check_isolation,
        "Keep all state in self and set it in reset(): none in the class, the module or files.",
    ),
    "the oracle reaches the top reward": (
        EnvironmentChecks.check_oracle,
        "Correct oracle(), or set max_reward in the class to the best return of an episode.",
    ),
    "weak players score below the oracle": (
        EnvironmentChecks.check_weak_players,
        "Give no reward for what solves nothing: try the reward on empty, constant, random and "
        "copied answers. In a game, choose a stronger opponent. If any action shall be rewarded, "
        "set rewards_any_action = True in the class.",
    ),
}
"""The checks by name, in the order in which to run them, and what to do if one fails."""
