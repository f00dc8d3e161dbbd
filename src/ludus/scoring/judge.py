"""A judge: an agent that scores episodes by criteria, one at a time or a whole group per call.

Scores of a group are relative (the idea of RULER): a model tells which of several attempts is
better more reliably than how good one of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Reply
from ludus.agents.scripted import FunctionAgent, ReplyFunction
from ludus.data.episode import Episode, Usage
from ludus.data.files import stable_hash
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import (
    AgentError,
    BadReply,
    ConfigError,
    LudusError,
    ProviderRefuses,
    RequestRefused,
)
from ludus.rollout.stats import RunBudget, RunStats
from ludus.scoring.judge_prompt import (
    DEFAULT_CRITERIA,
    Grade,
    attempt_text,
    build_correction,
    build_prompt,
    parse_grades,
    task_text,
)

_PROVIDERS_WITHOUT_MODEL = ("oracle", "random", "human")


class BudgetExhausted(LudusError):
    """The judge has used up its calls or its money. Nothing is wrong with the episode."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result for one episode."""

    score: float | None
    """From 0 to 1; None: the judge failed."""
    reason: str
    """The judge's reason for the score, or why there is no score."""
    error: str | None = None
    """The kind of the failure, such as `BadReply`."""


@dataclass(slots=True)
class JudgeStats:
    """What a judge has done so far."""

    calls: int = 0
    failed: int = 0
    """Prompts without a valid reply."""
    usage: Usage = field(default_factory=Usage)

    def as_json(self) -> JsonObject:
        return {
            "calls": self.calls,
            "failed": self.failed,
            "usage": self.usage.model_dump(),
        }


class Judge:
    """Scores episodes. It is also a reward function: `await judge(episode)`.

    Args:
        agent: the model, from `ludus.agent`, or a function from messages to the text of a reply.
        criteria: what makes an attempt good, in plain words.
        groups: score all attempts at a task in one call, relative to each other.
        max_attempts: calls per prompt, if a call fails or its reply cannot be parsed.
        max_tokens: maximum number of tokens per reply, reasoning included.
        max_calls: maximum number of calls.
        max_cost: maximum cost, in US dollars.
    """

    def __init__(
        self,
        agent: Agent | ReplyFunction,
        criteria: str = DEFAULT_CRITERIA,
        *,
        groups: bool = False,
        max_attempts: int = 3,
        max_tokens: int | None = 2048,
        max_calls: int | None = None,
        max_cost: float | None = None,
    ) -> None:
        self.agent = agent if isinstance(agent, Agent) else FunctionAgent(agent)
        if self.agent.provider in _PROVIDERS_WITHOUT_MODEL:
            raise ConfigError(f"`judge` must be a model, got {self.agent.provider}.")
        if not criteria.strip():
            raise ConfigError("The criteria of the `judge` are empty.")
        if max_attempts < 1:
            raise ConfigError(f"`max_attempts` must be positive, got {max_attempts}.")
        if max_cost is not None and not max_cost > 0:
            raise ConfigError(f"`max_cost` must be positive, got {max_cost:g}.")
        if max_cost is not None and not self.agent.has_price:
            raise ConfigError(
                "`max_cost` needs a price, and none is known for this model. "
                "Give its price with `prices`, or use `max_calls`."
            )
        self.criteria = criteria
        self.groups = groups
        self.max_attempts = max_attempts
        self.max_tokens = max_tokens
        self.max_calls = max_calls
        self.budget = RunBudget(max_cost=max_cost)
        self.stats = JudgeStats()
        self._spending = RunStats(planned=0, remaining=0)
        self._active = 0

    def resume(self, stats: JudgeStats) -> None:
        """Continue from the counts of an earlier start of a run; the limits are for all starts."""
        self.stats = stats
        self._spending = RunStats(
            planned=0, remaining=0, usage_before=stats.usage, costed_attempts=stats.calls
        )

    @property
    def max_active(self) -> float:
        """Prompts at once: few while their cost is unknown and limited."""
        return self.budget.max_active(self._spending)

    def describe(self) -> JsonObject:
        """What decides the scores, as `run.json` stores it; no secrets."""
        agent = {key: value for key, value in self.agent.describe().items() if key != "endpoint"}
        return {
            "agent": agent,
            "criteria": self.criteria,
            "groups": self.groups,
            "max_tokens": self.max_tokens,
        }

    async def __call__(self, episode: Episode) -> float | None:
        """The score of one episode, for use as a reward function; None if the judge failed."""
        if self.groups:
            raise ConfigError("A judge of groups cannot score a single episode; use groups=False.")
        with suppress(BudgetExhausted):
            return (await self.judge([episode]))[0].score
        return None

    async def judge(self, episodes: Sequence[Episode]) -> list[Judgement]:
        """Judge one episode, or all attempts at one task, with one prompt.

        A failure is a judgement without a score. Raises `BudgetExhausted` instead of making a call
        beyond the limits.
        """
        texts = [attempt_text(episode) for episode in episodes]
        # Equal attempts are shown once. Their order does not depend on the order of play, so that
        # positions carry no information.
        attempts = sorted(set(texts), key=stable_hash)
        prompt = build_prompt(self.criteria, task_text(episodes[0]), attempts, groups=self.groups)
        try:
            grades = await self._ask(prompt, len(attempts))
        except AgentError as error:
            self.stats.failed += 1
            return [Judgement(None, str(error), type(error).__name__) for _ in episodes]
        by_text = dict(zip(attempts, grades, strict=True))
        return [Judgement(*by_text[text]) for text in texts]

    async def _ask(self, prompt: Sequence[Message], count: int) -> list[Grade]:
        """Call the model until its reply has the grades; raises the last error."""
        messages, last_error = list(prompt), AgentError("The judge was not asked.")
        for attempt in range(self.max_attempts):
            try:
                reply = await self._call(messages, attempt)
            except (ProviderRefuses, RequestRefused):
                raise  # Another call gets the same.
            except AgentError as error:
                last_error = error
                continue
            if reply.finish_reason is FinishReason.REFUSED:
                raise RequestRefused("The judge's model or its provider declined to answer.")
            if reply.finish_reason is FinishReason.LENGTH:
                last_error = BadReply("The judge's reply was truncated; raise `max_tokens`.")
                continue
            text = reply.message.text
            try:
                return parse_grades(text, count, groups=self.groups)
            except BadReply as error:
                last_error = error
                answer = Message(role="assistant", content=text)
                messages = [*prompt, answer, build_correction(error)]
        raise last_error

    async def _call(self, messages: Sequence[Message], attempt: int) -> Reply:
        if self.max_calls is not None and self.stats.calls >= self.max_calls:
            raise BudgetExhausted(f"the limit of {self.max_calls:,} judge calls is used up")
        reason = self.budget.exhausted_reason(self._spending, [Usage()] * self._active)
        if reason is not None:
            raise BudgetExhausted(reason)
        self.stats.calls += 1
        self._active += 1
        usage = Usage()
        try:
            # A local model samples from the member's seed, so a repeated call differs.
            context = EpisodeContext(environment="judge", tools=(), member=attempt)
            player = await self.agent.begin(context)
            try:
                reply = await player.act(messages, max_tokens=self.max_tokens)
            finally:
                await player.close()
            usage = reply.usage
            return reply
        finally:
            self._active -= 1
            self.stats.usage += usage
            self._spending.usage_now += usage
            self._spending.costed_attempts += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.agent.close()
