"""An environment as a task of Inspect, for `inspect eval`.

Inspect brings the model, its limits, its log and its viewer. The episode itself is played by
Ludus's own loop, on the same tasks as `ludus eval` with the same seed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.data.config import config_digest
from ludus.data.episode import Usage
from ludus.data.messages import Call, Function, Message, Text
from ludus.data.tool_schema import ToolSpec
from ludus.environment.mixture import Mixture
from ludus.errors import LudusError, MissingExtra
from ludus.evaluation.config import EvalConfig
from ludus.rollout.endpoints import EnvironmentEndpoint, resolve_endpoints
from ludus.rollout.loop import run_episode
from ludus.rollout.plan import build_plan

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.model import ChatMessage, Content, ModelOutput
    from inspect_ai.scorer import Score, Scorer, Target
    from inspect_ai.solver import Generate, Solver, TaskState
    from inspect_ai.tool import ToolInfo

_EPISODE_KEY = "ludus:episode"
_FINISH_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.REFUSED,
}


def inspect_task(env: str | Mixture, config: EvalConfig | None = None) -> Task:
    """Return the tasks of an environment as a task of Inspect.

    Args:
        env: the environment: a spec such as `wordle`, a URL, or a mixture of several.
        config: which tasks are played, and how. `group_size` becomes Inspect's epochs.
    """
    try:
        from inspect_ai import Task
        from inspect_ai.dataset import MemoryDataset, Sample
    except ImportError:
        raise MissingExtra.of("inspect", "An Inspect task") from None

    config = config or EvalConfig()
    mixture = config.parse_environment(env)
    if config.base_url is None:
        mixture.check_installed()
    name = str(mixture)
    samples = [
        # The question is known when the environment has been reset.
        Sample(id=number + 1, input=f"{name}, task {number}", metadata={"task": number})
        for number in range(-(-config.total_episodes // config.group_size))
    ]
    return Task(
        dataset=MemoryDataset(samples, name=name),
        solver=_play_solver(mixture, config),
        scorer=_reward_scorer(config.solved_at),
        epochs=config.group_size if config.group_size > 1 else None,
        name=name.replace(":", "_").replace("/", "_"),
    )


def _play_solver(mixture: Mixture, config: EvalConfig) -> Solver:
    from inspect_ai.solver import solver

    buckets = config.build_sweep(mixture)
    digest = config_digest({"environment": str(mixture), "seed": config.seed})
    endpoints: dict[str, EnvironmentEndpoint] = {}
    opening = asyncio.Lock()

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async with opening:
            if not endpoints:
                endpoints.update(
                    await resolve_endpoints(mixture, base_url=config.base_url, token=config.token)
                )
        plan = build_plan(config, digest, mixture, endpoints, buckets)
        index = state.metadata["task"] * config.group_size + state.epoch - 1
        agent = InspectAgent()
        async with endpoints[plan.spec_of(index)].endpoint.session() as session:
            episode = await run_episode(
                session,
                agent,
                plan[index],
                limits=config.limits,
                system_prompt=config.system_prompt,
            )
        if episode.error is not None:
            # Inspect counts it as an error of the sample, not as a failure of the model.
            raise LudusError(episode.error.text)
        agent.add_messages(episode.messages)
        state.messages = agent.messages
        if agent.output is not None:
            state.output = agent.output
        state.store.set(_EPISODE_KEY, episode.model_dump(mode="json", exclude={"tokens"}))
        state.completed = True
        return state

    play_task: Solver = solver(name="ludus")(lambda: solve)()
    return play_task


def _reward_scorer(solved_at: float) -> Scorer:
    from inspect_ai.scorer import Score, mean, scorer, stderr

    async def score(state: TaskState, target: Target) -> Score:
        episode = state.store.get(_EPISODE_KEY)
        value = episode["reward"]
        if value is None:
            return Score.unscored()
        return Score(
            value={"reward": value, "solved": float(value >= solved_at)},
            explanation=f"{episode['stop_reason']} after {episode['turns']} turns",
            metadata={"rewards": episode["rewards"], "task": episode["task"]},
        )

    metrics = {"reward": [mean(), stderr()], "solved": [mean(), stderr()]}
    score_reward: Scorer = scorer(name="ludus", metrics=metrics)(lambda: score)()
    return score_reward


class InspectAgent(Agent):
    """Plays one episode with the model that Inspect evaluates."""

    provider = "inspect"

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        """The conversation as Inspect has it."""
        self.output: ModelOutput | None = None
        """The model's last reply."""
        self._seen = 0

    async def begin(self, context: EpisodeContext) -> Player:
        return _InspectPlayer(self, context.tools)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Add the new messages; the model's replies were added when it gave them."""
        new, self._seen = messages[self._seen :], len(messages)
        self.messages += [_to_inspect(each) for each in new if each.role != "assistant"]


class _InspectPlayer(Player):
    def __init__(self, agent: InspectAgent, tools: Sequence[ToolSpec]) -> None:
        self.agent = agent
        from inspect_ai.tool import ToolInfo, ToolParams

        self.tools: list[ToolInfo] = []
        for tool in tools:
            schema = {"type": "object", "properties": {}, **tool.input_schema}
            supported = {key: schema.get(key, []) for key in ("type", "properties", "required")}
            parameters = ToolParams.model_validate(supported)
            self.tools.append(
                ToolInfo(name=tool.name, description=tool.description or "", parameters=parameters)
            )

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        from inspect_ai.model import GenerateConfig, get_model

        self.agent.add_messages(messages)
        output = await get_model().generate(
            self.agent.messages, tools=self.tools, config=GenerateConfig(max_tokens=max_tokens)
        )
        self.agent.output = output
        self.agent.messages.append(output.message)
        return _to_reply(output)


def _to_reply(output: ModelOutput) -> Reply:
    calls = tuple(
        Call(
            id=call.id,
            # The text of arguments that could not be parsed is kept by Inspect alone.
            function=Function(
                name=call.function,
                arguments="" if call.parse_error else json.dumps(call.arguments),
            ),
        )
        for call in output.message.tool_calls or ()
    )
    usage = output.usage
    return Reply(
        Message(role="assistant", content=output.message.text, tool_calls=calls or None),
        finish_reason=_FINISH_REASONS.get(output.stop_reason, FinishReason.STOP),
        usage=Usage(prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens)
        if usage
        else Usage(),
    )


def _to_inspect(message: Message) -> ChatMessage:
    from inspect_ai.model import (
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        ContentImage,
        ContentText,
    )

    content: str | list[Content] = message.text
    if not isinstance(message.content, str):
        content = [
            ContentText(text=part.text)
            if isinstance(part, Text)
            else ContentImage(image=part.image_url.url)
            for part in message.content
        ]
    if message.role == "system":
        return ChatMessageSystem(content=content)
    if message.role == "tool":
        return ChatMessageTool(content=content, tool_call_id=message.tool_call_id)
    return ChatMessageUser(content=content)
