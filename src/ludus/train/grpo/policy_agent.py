"""The model under training as an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.policy.agent import PolicyAgent
from ludus.policy.engine.batcher import Engine, RequestBatcher
from ludus.policy.engine.engine_api import (
    Completion,
    DecodeStats,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
)
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.load import Policy
from ludus.policy.sampling_config import eos_token_ids
from ludus.train.context import GRPOContext
from ludus.train.distributed import whole_weights
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.rollout_worker import RolloutWorker

if TYPE_CHECKING:
    from torch import nn


class TrainingPolicyAgent(PolicyAgent):
    """A policy agent whose weights change; its episodes record the step they were played for."""

    step = 0
    """Training step of the next episodes, from 1."""

    def __init__(
        self, policy: Policy, config: GRPOConfig, *, engine: Engine | None = None, **kwargs: Any
    ) -> None:
        self._engine_override = engine
        extra: JsonObject = {"seed": config.seed, "top_p": config.top_p}
        if config.top_k is not None:
            extra["top_k"] = config.top_k
        super().__init__(policy, temperature=config.temperature, extra=extra, **kwargs)

    def describe(self) -> JsonObject:
        return {**super().describe(), "step": self.step}

    def _start_engine(self, policy: Policy) -> RequestBatcher:
        engine = self._engine_override
        if engine is None:
            return super()._start_engine(policy)
        self.engine_description = str(engine)
        return RequestBatcher(engine, max_batch=self.max_batch)

    @property
    def decode_stats(self) -> DecodeStats:
        """A copy of the decoding counters."""
        runtime = self._runtime
        return DecodeStats() if runtime is None else replace(runtime.batcher.stats)

    async def refresh_weights(self) -> None:
        """Drop everything that the engine derived from the old weights."""
        batcher = (await self.ensure_loaded()).batcher
        # In a thread: all weights are copied, and the event loop has open sessions to serve.
        await asyncio.to_thread(batcher.refresh)

    @property
    def decodes_with_model(self) -> bool:
        """Whether the engine has no copy of the weights."""
        return self._runtime is not None and isinstance(self._runtime.batcher.engine, HFDecoder)

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Free the engine's cache if it takes more than `larger_than` bytes."""
        if self._runtime is not None:
            self._runtime.batcher.free_cache(larger_than=larger_than)


def build_policy_agent(context: GRPOContext, trainer: Any) -> TrainingPolicyAgent:
    """The model of a GRPO run's trainer as a policy agent."""
    config, chat_format = context.config, context.chat_format
    stop_token_ids = chat_format.stop_token_ids | eos_token_ids(trainer.model)
    policy = Policy(
        context.model_ref.name, trainer.model, context.tokenizer,
        replace(chat_format, stop_token_ids=stop_token_ids), vision=context.vision,
    )  # fmt: skip
    engine = VllmEngine(trainer) if config.vllm_mode else None
    max_batch = config.episodes // context.distributed.world_size
    return TrainingPolicyAgent(policy, config, engine=engine, max_batch=max_batch)


@contextmanager
def current_policy(worker: RolloutWorker, model: nn.Module) -> Iterator[TrainingPolicyAgent]:
    """Let the worker play with the model's current weights.

    All ranks must enter it: weights that FSDP divides are gathered, as long as the engine reads
    them.
    """
    agent, training = worker.agent, model.training
    assert isinstance(agent, TrainingPolicyAgent)
    model.eval()
    try:
        with ExitStack() as gathered:
            gathered.enter_context(whole_weights(model))
            worker.run(agent.refresh_weights())
            if not agent.decodes_with_model:
                gathered.close()
            yield agent
    finally:
        model.train(training)


def check_vllm_installed() -> None:
    if find_spec("vllm") is None:
        raise ConfigError("`vllm_mode` needs vLLM. Install it: pip install 'trl[vllm]'")


class VllmEngine:
    """Decodes all requests of a batch with one call, on the weights of the trainer's model."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.stats = DecodeStats()

    def __str__(self) -> str:
        return f"vLLM ({self._trainer.vllm_generation.mode})"

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted,
        poll_requests: PollRequests,
    ) -> None:
        wanted = [at for at in range(len(requests)) if is_wanted(at)]
        if not wanted:
            return
        vllm = self._trainer.vllm_generation
        trl_limit = vllm.max_completion_length
        # vLLM has one limit for the whole batch; shorter budgets are enforced by `_truncate`.
        vllm.max_completion_length = max(requests[at].max_tokens for at in wanted)
        prompts = [list(requests[at].ids) for at in wanted]
        try:
            output = vllm.generate(prompts=prompts, images=None, num_generations=1)
        finally:
            # TRL's own loop uses it too.
            vllm.max_completion_length = trl_limit
        _, replies, logprobs, *_ = output
        for at, ids, top_logprobs in zip(wanted, replies, logprobs, strict=True):
            completion = _truncate_completion(requests[at], ids, [top[0] for top in top_logprobs])
            self.stats.sampled_tokens += len(completion.ids)
            deliver(at, completion)

    def refresh(self) -> None:
        """Sync the weights to vLLM, unless TRL has done so since they last changed.

        TRL syncs before a step's rollouts; held-out tasks are played after the step.
        """
        trainer = self._trainer
        if trainer._last_loaded_step != trainer.state.global_step:
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Nothing to do: TRL decides how much memory vLLM keeps."""


def _truncate_completion(
    request: Request, ids: Sequence[int], logprobs: Sequence[float | None]
) -> Completion:
    """Cut a reply after its first stop token and at the request's `max_tokens`."""
    ends = [at + 1 for at, token in enumerate(ids) if token in request.stop_token_ids]
    size = min([request.max_tokens, len(ids), *ends[:1]])
    reply = tuple(ids[:size])
    # If vLLM reports none, 0 does no harm: TRL computes the log-probabilities for the loss.
    return Completion(
        reply,
        tuple(0.0 if each is None else float(each) for each in logprobs[:size]),
        stopped=bool(reply) and reply[-1] in request.stop_token_ids,
    )
