"""The episode loop: an agent and an environment take turns until the episode ends.

Collecting, evaluating and training all use it. A failure is not raised but recorded: the episode
then has an `error` and no reward.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.client.session import Session
from ludus.data.episode import Episode, Fault, StopReason, Tokens, Usage
from ludus.data.messages import Call, Function, Message, message_from_content
from ludus.data.tool_schema import JsonObject
from ludus.protocol.types import StepResult
from ludus.rollout.episode_record import build_episode_record, deadline_fault, fault_from_exception
from ludus.rollout.monitoring import EpisodeStatus
from ludus.rollout.plan import Assignment
from ludus.rollout.reward_sum import RewardSum

SYSTEM_PROMPT = (
    "You act through the tools that you are given. Read what you are shown, then call a tool; "
    "words alone do nothing here."
)
DEFAULT_MAX_TURNS = 20
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
    """None: 20, or as many as the rules of the environment give, if those are more."""
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
    status: EpisodeStatus | None = None,
) -> Episode:
    """Play one episode on an open session. A failure is recorded in the episode's `error`."""
    limits = limits or EpisodeLimits()
    status = status or EpisodeStatus(assignment.episode_id, assignment.environment)
    episode = _EpisodeInProgress(session, assignment, limits, status)
    if system_prompt:
        episode.messages.append(Message(role="system", content=system_prompt))
    started_at = datetime.now(UTC)
    fault: Fault | None = None
    try:
        async with asyncio.timeout(limits.episode_timeout) as deadline:
            stop_reason = await episode.run(agent)
    except Exception as error:
        late = deadline.expired() and isinstance(error, TimeoutError)
        stop_reason = StopReason.DEADLINE if late else StopReason.BROKEN
        fault = (
            deadline_fault(status, limits.episode_timeout)
            if late
            else fault_from_exception(error, status)
        )
    return build_episode_record(
        assignment,
        agent=describe_agent(agent, limits),
        attempt=attempt,
        stop_reason=stop_reason,
        error=fault,
        started_at=started_at,
        status=status,
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
class _EpisodeInProgress:
    """The state of an episode while it is played."""

    session: Session
    assignment: Assignment
    limits: EpisodeLimits
    status: EpisodeStatus
    messages: list[Message] = field(default_factory=list)
    reward_sum: RewardSum = field(default_factory=RewardSum)
    usage: Usage = field(default_factory=Usage)
    tutor_usage: Usage = field(default_factory=Usage)
    """Apart from the agent's, whose tokens are limited."""
    tokens: Tokens | None = None
    explored_turns: list[int] = field(default_factory=list)
    tutor_replies: list[Message | None] = field(default_factory=list)
    max_turns: int = DEFAULT_MAX_TURNS
    turns: int = 0
    tool_calls: int = 0

    async def run(self, agent: Agent) -> StopReason:
        with self.status.track("environment", "reset"):
            first = await self.session.reset(**self.assignment.task)
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
            result: StepResult[dict[str, Any]] = StepResult({}, error=str(problem), malformed=True)
            self.add_result(result, "tool", tool_call_id=call.id)
            return True
        with self.status.track("environment", f"the tool {name}"):
            result = await self.session.call(name, arguments)
        self.add_result(result, "tool", tool_call_id=call.id)
        return result.malformed

    def parse_arguments(self, function: Function) -> dict[str, Any]:
        """Parse the arguments of a call.

        Raises ValueError with a message for the model, which shows the arguments of the tool if
        there is one of this name.
        """
        try:
            arguments = json.loads(function.arguments) if function.arguments.strip() else {}
            problem = "not a JSON object."
        except ValueError as error:
            arguments, problem = None, f"not JSON ({error})."
        if isinstance(arguments, dict):
            return arguments
        for tool in self.session.tools:
            if tool.name == function.name:
                names = tool.input_schema.get("properties", {})
                form = ", ".join(f'"{argument}": …' for argument in names)
                problem += f" Write them like {{{form}}}."
                break
        raise ValueError(f"The arguments of this call are {problem}")

    def add_result(self, result: StepResult[dict[str, Any]], role: Any, **fields: Any) -> None:
        """Add a result of the environment to the messages and to the reward."""
        self.messages.append(message_from_content(role, result.content, **fields))
        self.reward_sum.add(result)
