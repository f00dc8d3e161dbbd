"""The episode loop: an agent and an environment take turns until the episode ends.

Collecting, evaluating and training all use it. A failure is not raised but recorded: the episode
then has an `error` and no reward. `run_attempt` plays in a session of a pool, and `retry_faults`
plays again what the infrastructure broke.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.client.session import Session
from ludus.data.episode import Episode, EpisodeFault, StopReason, Timing, Tokens, Usage
from ludus.data.messages import Call, Function, Message, Role, message_from_content
from ludus.data.tool_schema import JsonObject
from ludus.environment.task_splits import split_of
from ludus.errors import (
    BadEnvironment,
    InvalidAction,
    ProviderRefuses,
    RequestRefused,
    SessionLost,
    WorkersFailed,
)
from ludus.protocol.types import StepResult
from ludus.rollout.held_out_tasks import identify_task
from ludus.rollout.plan import Assignment
from ludus.rollout.progress import EpisodeProgress
from ludus.rollout.session_pool import SessionPool

SYSTEM_PROMPT = (
    "You act through the tools that you are given. Read what you are shown, then call a tool; "
    "words alone do nothing here."
)
FATAL_FAULTS = frozenset({ProviderRefuses.__name__, WorkersFailed.__name__})
"""Faults that affect every episode, such as a wrong key or an unknown model."""
PERMANENT_FAULTS = FATAL_FAULTS | {InvalidAction.__name__, RequestRefused.__name__}
"""Faults that a retry does not solve."""
DEFAULT_MAX_TURNS = 20
_REWARD_DIGITS = 12
"""Decimals of a sum of rewards: more of them are rounding errors."""
MAX_SEEDS_DRAWN = 128
"""Seeds after which an episode is played with a task of another split than the wanted one."""
NOT_RUN_MESSAGE = "Error: This call was not run, because the episode had ended before it."
_STOP_REASONS_WITHOUT_CALL = {
    FinishReason.LENGTH: StopReason.MAX_TOKENS,
    FinishReason.REFUSED: StopReason.REFUSED,
    FinishReason.STOP: StopReason.NO_TOOL_CALL,
}
"""The stop reason of an episode whose last reply calls no tool, by how that reply ended."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of one episode; None means unlimited."""

    max_turns: int | None = None
    """None: 20, or the number that the environment's rules allow, if that is higher."""
    max_tokens: int | None = None
    """Maximum number of tokens sampled per reply."""
    max_episode_tokens: int | None = None
    """Maximum number of tokens sampled per episode; each reply may use what is left of them."""
    episode_timeout: float | None = None
    """Seconds for the whole episode."""


async def run_episode(
    session: Session,
    agent: Agent,
    assignment: Assignment,
    *,
    limits: EpisodeLimits | None = None,
    system_prompt: str | None = SYSTEM_PROMPT,
    attempt: int = 1,
    status: EpisodeProgress | None = None,
) -> Episode:
    """Play one episode on an open session. A failure is recorded in its `error`."""
    limits = limits or EpisodeLimits()
    status = status or EpisodeProgress(assignment.episode_id, assignment.environment)
    episode = _EpisodeInProgress(session, assignment, limits, status)
    if system_prompt:
        episode.messages.append(Message(role="system", content=system_prompt))
    status.started_at = datetime.now(UTC)
    fault: EpisodeFault | None = None
    try:
        async with asyncio.timeout(limits.episode_timeout) as deadline:
            stop_reason = await episode.run(agent)
    except Exception as error:
        late = deadline.expired() and isinstance(error, TimeoutError)
        stop_reason, fault = _describe_fault(
            error, status, limits.episode_timeout if late else None
        )
    return _build_record(
        episode.assignment,
        status,
        agent=describe_agent(agent, limits),
        attempt=attempt,
        stop_reason=stop_reason,
        error=fault,
        reward=episode.reward_sum.total if fault is None else None,
        usage=episode.status.usage,
        messages=tuple(episode.messages),
        tools=tuple(tool.to_openai() for tool in session.tools),
        rewards=dict(episode.reward_sum.parts) if fault is None else {},
        turn_rewards=episode.reward_sum.turn_rewards if fault is None else (),
        progress=tuple(episode.reward_sum.progress) if fault is None else (),
        explored_turns=tuple(episode.explored_turns),
        tutor_replies=tuple(episode.tutor_replies),
        done=episode.reward_sum.done,
        turns=episode.turns,
        tool_calls=episode.tool_calls,
        malformed_calls=episode.reward_sum.malformed_calls,
        tokens=episode.tokens,
    )


async def run_attempt(
    assignment: Assignment,
    agent: Agent,
    pool: SessionPool,
    *,
    limits: EpisodeLimits,
    system_prompt: str | None = SYSTEM_PROMPT,
    attempt: int = 1,
    status: EpisodeProgress | None = None,
) -> Episode:
    """Play an attempt on a session of the pool, which is reused unless its state is in doubt."""
    status = status or EpisodeProgress(assignment.episode_id, assignment.environment)
    try:
        with status.track("environment", f"a session of {pool.endpoint.spec}"):
            session = await pool.acquire(open_timeout=limits.episode_timeout)
    except Exception as error:
        return build_broken_record(assignment, agent, limits, error, attempt=attempt, status=status)
    try:
        episode = await run_episode(
            session,
            agent,
            assignment,
            limits=limits,
            system_prompt=system_prompt,
            attempt=attempt,
            status=status,
        )
    except BaseException:
        await pool.discard(session)
        raise
    if episode.error is None or episode.error.where == "model":
        pool.release(session)
    else:
        await pool.discard(session)
        if episode.error.kind == SessionLost.__name__:
            # The server is probably gone, and the idle sessions with it.
            await pool.close_idle()
    return episode


async def retry_faults(
    play: Callable[[int], Awaitable[Episode]],
    *,
    max_attempts: int,
    retry_delay: float,
    stopping: asyncio.Event | None = None,
) -> Episode | None:
    """Call `play` with 1, 2, … until an attempt has no fault that a retry may solve.

    Args:
        retry_delay: seconds before the second attempt; doubled for each further one.
        stopping: once set, no further attempt is started, and the result is None.
    """
    stopping, usage = stopping or asyncio.Event(), Usage()
    for attempt in range(1, max_attempts + 1):
        episode = await play(attempt)
        usage += episode.usage
        if episode.error is None or episode.error.kind in PERMANENT_FAULTS:
            break
        if attempt < max_attempts:
            delay = retry_delay * 2 ** (attempt - 1)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.5, 1.5)):
                    await stopping.wait()
            if stopping.is_set():
                return None
    # The usage of the broken attempts was paid for this episode too.
    return episode if attempt == 1 else episode.model_copy(update={"usage": usage})


def describe_agent(agent: Agent, limits: EpisodeLimits) -> JsonObject:
    """The description of an agent in an episode: its own, and the token limits that were set."""
    limits_set = {
        "max_tokens": limits.max_tokens,
        "max_episode_tokens": limits.max_episode_tokens,
    }
    return {
        **agent.describe(),
        **{name: value for name, value in limits_set.items() if value is not None},
    }


@dataclass(slots=True)
class RewardSum:
    """The rewards and the progress of an episode so far, and whether it is done."""

    step_rewards: list[float] = field(default_factory=list)
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sums of the named parts of the rewards."""
    done: bool = False
    malformed_calls: int = 0
    progress: list[float] = field(default_factory=list)
    """Progress after the reset and after each turn; empty if the environment reports none."""
    _turn_starts: list[int] = field(default_factory=list)
    """For each turn, how many step rewards there were before it."""

    def begin_turn(self) -> None:
        """Start the next turn: results added from now on belong to it."""
        # A reward of the reset counts to the first turn.
        self._turn_starts.append(len(self.step_rewards) if self._turn_starts else 0)
        # Without a call, or with a malformed one, the progress stays what it was.
        self.progress += self.progress[-1:]

    def add(self, result: StepResult[JsonObject]) -> None:
        """Add the result of a reset or a step."""
        self.malformed_calls += result.malformed
        self.done = result.done
        if result.reward is not None:
            self.step_rewards.append(_check_finite(result.reward))
        if result.progress is not None and (self.progress or not self._turn_starts):
            self.progress[-1:] = [result.progress]
        for name, part in result.rewards.items():
            self.parts[name] += _check_finite(part)

    @property
    def total(self) -> float | None:
        """The return; None (unscored) if the episode ended and no result had a reward."""
        if not self.step_rewards:
            return None if self.done else 0.0
        # Shares of 1 such as 0.5 / 37 add up to 1, not to 0.9999999999999999, which is no success.
        several = len(self.step_rewards) > 1
        total = math.fsum(self.step_rewards)
        return round(total, _REWARD_DIGITS) if several else total

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """The reward of each turn; empty if the episode is unscored."""
        if self.total is None:
            return ()
        bounds = pairwise([*self._turn_starts, len(self.step_rewards)])
        return tuple(math.fsum(self.step_rewards[start:end]) for start, end in bounds)


def _check_finite(reward: float) -> float:
    value = float(reward)
    if not math.isfinite(value):
        raise BadEnvironment(f"The environment returned a reward that is not finite: {reward!r}.")
    return value


@dataclass(slots=True)
class _EpisodeInProgress:
    """The state of an episode while it is played."""

    session: Session
    assignment: Assignment
    limits: EpisodeLimits
    status: EpisodeProgress
    messages: list[Message] = field(default_factory=list)
    reward_sum: RewardSum = field(default_factory=RewardSum)
    usage: Usage = field(default_factory=Usage)
    tutor_usage: Usage = field(default_factory=Usage)
    """Counted apart from the agent's usage, whose tokens are limited."""
    tokens: Tokens | None = None
    explored_turns: list[int] = field(default_factory=list)
    tutor_replies: list[Message | None] = field(default_factory=list)
    max_turns: int = DEFAULT_MAX_TURNS
    turns: int = 0
    tool_calls: int = 0

    async def run(self, agent: Agent) -> StopReason:
        with self.status.track("environment", "reset"):
            first = await self.reset()
            self.add_result(first, "user")
        if self.limits.max_turns is not None:
            self.max_turns = self.limits.max_turns
        else:
            self.max_turns = max(DEFAULT_MAX_TURNS, first.max_turns or 0)
        if self.reward_sum.done:
            return StopReason.DONE
        context = EpisodeContext(
            environment=self.assignment.environment,
            tools=tuple(self.session.tools),
            task=self.assignment.task,
            seed=self.assignment.seed,
            member=self.assignment.member,
            runner=self.session.runner,
        )
        with self.status.track("model", "the start of the agent"):
            player = await agent.begin(context)
        try:
            return await self.run_turns(player)
        finally:
            await player.close()

    async def reset(self) -> StepResult[JsonObject]:
        """Start the episode, with other seeds until its task is from the wanted split."""
        drawn = self.assignment
        for number in range(1, MAX_SEEDS_DRAWN):
            first = await self.session.reset(**self.assignment.task)
            if drawn.split is None or split_of(identify_task(first)) == drawn.split:
                return first
            self.assignment = drawn.redraw(number)
        return await self.session.reset(**self.assignment.task)

    async def run_turns(self, player: Player) -> StopReason:
        truncated = False
        while self.turns < self.max_turns:
            max_tokens = self.next_max_tokens()
            if max_tokens is not None and max_tokens <= 0:
                return StopReason.MAX_TOKENS
            with self.status.track("model", f"the model's reply (turn {self.turns + 1})"):
                reply = await player.act(self.messages, max_tokens=max_tokens)
            calls = self.add_reply(reply)
            if not calls:
                return _STOP_REASONS_WITHOUT_CALL[reply.finish_reason]
            for call in calls:
                malformed = await self.run_tool_call(call)
            if self.reward_sum.done:
                return StopReason.DONE
            truncated = malformed and reply.finish_reason is FinishReason.LENGTH
            if truncated:
                # The token limit truncated the last call: it does not count as malformed.
                self.tool_calls -= 1
                self.reward_sum.malformed_calls -= 1
        return StopReason.MAX_TOKENS if truncated else StopReason.MAX_TURNS

    def next_max_tokens(self) -> int | None:
        """Maximum number of tokens of the next reply, within what the episode has left."""
        if self.limits.max_episode_tokens is None:
            return self.limits.max_tokens
        left = self.limits.max_episode_tokens - self.usage.completion_tokens
        return left if self.limits.max_tokens is None else min(self.limits.max_tokens, left)

    def add_reply(self, reply: Reply) -> Sequence[Call]:
        if reply.explored:
            self.explored_turns.append(self.turns)
        if (advice := reply.tutor) is not None:
            self.tutor_replies.append(advice.message if advice.is_complete else None)
            self.tutor_usage += advice.usage
        self.turns += 1
        self.reward_sum.begin_turn()
        self.usage += reply.usage
        self.status.usage = self.usage + self.tutor_usage if reply.tutor else self.usage
        self.tokens = reply.tokens or self.tokens
        message = reply.message
        if message.content or message.tool_calls or message.reasoning_content:
            self.messages.append(message)
        return message.tool_calls or ()

    async def run_tool_call(self, call: Call) -> bool:
        """Run a tool call and add its result to the messages; a failed call has a result too.

        Returns whether the call was malformed: not JSON, an unknown tool, or invalid arguments.
        """
        self.tool_calls += 1
        if self.reward_sum.done:
            self.messages.append(
                Message(role="tool", content=NOT_RUN_MESSAGE, tool_call_id=call.id)
            )
            return False
        name = call.function.name
        try:
            arguments = self.parse_arguments(call.function)
        except ValueError as problem:
            result: StepResult[JsonObject] = StepResult({}, error=str(problem), malformed=True)
            self.add_result(result, "tool", tool_call_id=call.id)
            return True
        with self.status.track("environment", f"the tool {name}"):
            result = await self.session.call(name, arguments)
        self.add_result(result, "tool", tool_call_id=call.id)
        return result.malformed

    def parse_arguments(self, function: Function) -> JsonObject:
        """Parse the arguments of a call.

        Raises ValueError with a message for the model, which shows the arguments of the tool if
        there is one of this name.
        """
        try:
            arguments = json.loads(function.arguments) if function.arguments.strip() else {}
            problem = "not a JSON object."
        except ValueError as error:
            arguments, problem = None, f"not JSON ({error})."
        except RecursionError:
            arguments, problem = None, "nested too deeply."
        if isinstance(arguments, dict):
            return arguments
        for tool in self.session.tools:
            if tool.name == function.name:
                names = tool.input_schema.get("properties", {})
                form = ", ".join(f'"{argument}": …' for argument in names)
                problem += f" Write them like {{{form}}}."
                break
        raise ValueError(f"The arguments of this call are {problem}")

    def add_result(
        self, result: StepResult[JsonObject], role: Role, tool_call_id: str | None = None
    ) -> None:
        """Add a result of the environment to the messages and to the reward."""
        self.messages.append(message_from_content(role, result.content, tool_call_id=tool_call_id))
        self.reward_sum.add(result)


def build_broken_record(
    assignment: Assignment,
    agent: Agent,
    limits: EpisodeLimits,
    error: Exception,
    *,
    attempt: int,
    status: EpisodeProgress,
) -> Episode:
    """Build the record of an episode that could not start."""
    late = isinstance(error, TimeoutError)
    stop_reason, fault = _describe_fault(error, status, limits.episode_timeout if late else None)
    return _build_record(
        assignment,
        status,
        agent=describe_agent(agent, limits),
        attempt=attempt,
        stop_reason=stop_reason,
        error=fault,
    )


def _build_record(assignment: Assignment, status: EpisodeProgress, **fields: Any) -> Episode:
    """Build the record of an episode; `fields` depend on how it was played."""
    return Episode(
        episode_id=assignment.episode_id,
        environment=assignment.environment,
        task=assignment.task,
        seed=assignment.seed,
        group_id=assignment.group_id,
        timing=Timing(
            started_at=status.started_at,
            ended_at=datetime.now(UTC),
            model_s=round(status.seconds["model"], 6),
            environment_s=round(status.seconds["environment"], 6),
        ),
        **fields,
    )


def _describe_fault(
    error: Exception, status: EpisodeProgress, timeout_s: float | None
) -> tuple[StopReason, EpisodeFault]:
    """Record an exception, with the side on which it occurred.

    `timeout_s` is given if the time-out of the episode raised it: then the fault says what the
    episode was waiting for.
    """
    if timeout_s is None:
        message = str(error) or repr(error)
        fault = EpisodeFault(kind=type(error).__name__, where=status.side, message=message)
        return StopReason.BROKEN, fault
    message = (
        f"The episode was not over after {timeout_s:g} s; "
        f"the last {status.elapsed():.1f} s went into {status.activity}."
    )
    return StopReason.DEADLINE, EpisodeFault(kind="Deadline", where=status.side, message=message)
