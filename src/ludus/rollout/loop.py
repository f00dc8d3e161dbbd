"""The loop: the only place where a model and an environment meet.

Collecting plays teachers with it, evaluating plays candidates, training plays the policy. What
fails is a value here, an episode without a score; whether it is tried again is the collector's
business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.client.session import Session, StepResult
from ludus.data.episode import Episode, Fault, StopReason, Timing, Tokens, Usage
from ludus.data.messages import Call, Message, message_from_content
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.rollout.episode_status import EpisodeStatus
from ludus.rollout.plan import Assignment
from ludus.rollout.reward_sum import RewardSum

SYSTEM_PROMPT = (
    "You act through the tools that you are given. Read what you are shown, then call a tool; "
    "words alone do nothing here."
)
NOT_RUN_MESSAGE = "Error: This call was not run, because the episode had ended before it."


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Where an episode is cut off."""

    max_turns: int = 20
    max_tokens: int | None = None
    """Tokens that the model may sample in one reply."""
    max_episode_tokens: int | None = None
    """Tokens that the model may sample in all replies of an episode; each may use what is left."""
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
    status: EpisodeStatus | None = None,
) -> Episode:
    """Play one episode on an open session; what breaks it is in the episode's `error`."""
    limits = limits or EpisodeLimits()
    status = status or EpisodeStatus(assignment.episode_id, assignment.environment)
    table = _EpisodeInProgress(session, assignment, limits, status)
    if system_prompt:
        table.messages.append(Message(role="system", content=system_prompt))
    started_at = datetime.now(UTC)
    error: Fault | None = None
    try:
        async with asyncio.timeout(limits.episode_timeout) as clock:
            stop = await table.run(agent)
    except Exception as failed:
        late = clock.expired() and isinstance(failed, TimeoutError)
        stop = StopReason.DEADLINE if late else StopReason.BROKEN
        error = deadline_fault(status, limits) if late else fault_from_exception(failed, status)
    return build_episode(
        assignment,
        agent,
        limits,
        attempt=attempt,
        stop_reason=stop,
        error=error,
        started_at=started_at,
        status=status,
        reward=table.reward_sum.total if error is None else None,
        usage=table.usage,
        messages=tuple(table.messages),
        tools=tuple(tool.to_openai() for tool in session.tools),
        rewards=dict(table.reward_sum.parts) if error is None else {},
        done=table.reward_sum.done,
        turns=table.turns,
        tool_calls=table.tool_calls,
        malformed_calls=table.reward_sum.malformed_calls,
        tokens=table.tokens,
    )


def build_episode(
    assignment: Assignment,
    agent: Agent,
    limits: EpisodeLimits,
    *,
    started_at: datetime,
    status: EpisodeStatus,
    **fields: Any,
) -> Episode:
    """The record of an attempt: who and which task, and what became of it."""
    return Episode(
        episode_id=assignment.episode_id,
        environment=assignment.environment,
        task=assignment.task,
        seed=assignment.seed,
        group_id=assignment.group_id,
        agent=describe_agent(agent, limits),
        timing=Timing(
            started_at=started_at,
            ended_at=datetime.now(UTC),
            model_s=round(status.seconds["model"], 6),
            environment_s=round(status.seconds["environment"], 6),
        ),
        **fields,
    )


def describe_agent(agent: Agent, limits: EpisodeLimits) -> JsonObject:
    """The agent as an episode records it."""
    budgets = {
        "max_tokens": limits.max_tokens,
        "max_episode_tokens": limits.max_episode_tokens,
    }
    given = {name: value for name, value in budgets.items() if value is not None}
    return {**agent.describe(), **given}


def fault_from_exception(error: BaseException, status: EpisodeStatus) -> Fault:
    """An exception as a record: what it is, and on whose side it happened."""
    message = str(error) or repr(error)
    return Fault(kind=type(error).__name__, where=status.side, message=message)


def deadline_fault(status: EpisodeStatus, limits: EpisodeLimits) -> Fault:
    """The record of a deadline that passed, and of what it passed in."""
    message = (
        f"The episode was not over after {limits.episode_timeout:g} s; "
        f"the last {status.elapsed():.1f} s went into {status.activity}."
    )
    return Fault(kind="Deadline", where=status.side, message=message)


@dataclass(slots=True)
class _EpisodeInProgress:
    """An episode while it is being played."""

    session: Session
    assignment: Assignment
    limits: EpisodeLimits
    status: EpisodeStatus
    messages: list[Message] = field(default_factory=list)
    reward_sum: RewardSum = field(default_factory=RewardSum)
    usage: Usage = field(default_factory=Usage)
    tokens: Tokens | None = None
    turns: int = 0
    tool_calls: int = 0

    async def run(self, agent: Agent) -> StopReason:
        with self.status.track("environment", "reset"):
            self.add_result(await self.session.reset(**self.assignment.task), "user")
        if self.reward_sum.done:
            return StopReason.DONE
        with self.status.track("model", "the agent's first thoughts"):
            player = await agent.begin(self.build_context())
        try:
            return await self.run_turns(player)
        finally:
            await player.close()

    def build_context(self) -> EpisodeContext:
        play = self.assignment
        return EpisodeContext(
            environment=play.environment,
            tools=tuple(self.session.tools),
            task=play.task,
            seed=play.seed,
            member=play.member,
        )

    async def run_turns(self, player: Player) -> StopReason:
        cut = False
        while self.turns < self.limits.max_turns:
            budget = self.next_max_tokens()
            if budget is not None and budget <= 0:
                return StopReason.MAX_TOKENS
            with self.status.track("model", f"the model's reply (turn {self.turns + 1})"):
                reply = await player.act(self.messages, max_tokens=budget)
            calls = self.add_reply(reply)
            if not calls:
                return _stop_reason_without_call(reply.finish_reason)
            for call in calls:
                malformed = await self.run_tool_call(call)
            if self.reward_sum.done:
                return StopReason.DONE
            cut = malformed and reply.finish_reason is FinishReason.LENGTH
            if cut:
                # The token limit cut the last call in two: that is no mistake of the model's.
                self.tool_calls -= 1
                self.reward_sum.malformed_calls -= 1
        return StopReason.MAX_TOKENS if cut else StopReason.MAX_TURNS

    def next_max_tokens(self) -> int | None:
        """How many tokens the next reply may have."""
        bounds = [self.limits.max_tokens]
        if self.limits.max_episode_tokens is not None:
            bounds.append(self.limits.max_episode_tokens - self.usage.completion_tokens)
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known else None

    def add_reply(self, reply: Reply) -> Sequence[Call]:
        self.turns += 1
        self.usage += reply.usage
        self.status.usage = self.usage
        self.tokens = reply.tokens or self.tokens
        message = reply.message
        if message.content or message.tool_calls or message.reasoning_content:
            self.messages.append(message)
        return message.tool_calls or ()

    async def run_tool_call(self, call: Call) -> bool:
        """Run one of the model's calls; each gets a reply, whatever became of it.

        Returns whether the call was malformed: no tool could take it.
        """
        self.tool_calls += 1
        if self.reward_sum.done:
            self.messages.append(
                Message(role="tool", content=NOT_RUN_MESSAGE, tool_call_id=call.id)
            )
            return False
        name = call.function.name
        arguments = _parse_arguments(call.function.arguments)
        if isinstance(arguments, str):
            wrong = f"{arguments} {_arguments_hint(self.session.tools, name)}".strip()
            self.add_result(
                StepResult({}, error=wrong, malformed=True), "tool", tool_call_id=call.id
            )
            return True
        with self.status.track("environment", f"the tool {name}"):
            result = await self.session.call(name, arguments)
        self.add_result(result, "tool", tool_call_id=call.id)
        return result.malformed

    def add_result(self, result: StepResult[dict[str, Any]], role: Any, **more: Any) -> None:
        """Take in what the environment gave."""
        self.messages.append(message_from_content(role, result.content, **more))
        self.reward_sum.add(result)


def _stop_reason_without_call(finish: FinishReason) -> StopReason:
    """Why a model called nothing."""
    match finish:
        case FinishReason.LENGTH:
            return StopReason.MAX_TOKENS
        case FinishReason.REFUSED:
            return StopReason.REFUSED
        case FinishReason.STOP:
            return StopReason.NO_TOOL_CALL


def _parse_arguments(written: str) -> dict[str, Any] | str:
    """The arguments of a call, or what is wrong with them in words for the model."""
    try:
        arguments = json.loads(written) if written.strip() else {}
    except ValueError as error:
        return f"The arguments of this call are not JSON ({error})."
    if not isinstance(arguments, dict):
        return "The arguments of this call are not a JSON object."
    return arguments


def _arguments_hint(tools: Sequence[ToolSpec], name: str) -> str:
    for tool in tools:
        if tool.name == name:
            names = tool.input_schema.get("properties", {})
            form = ", ".join(f'"{argument}": …' for argument in names)
            return f"Write them like {{{form}}}."
    return ""
