"""TRL's vLLM as a decoding engine: in the trainer's process or on a server."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ludus.errors import ConfigError
from ludus.policy.engine.engine_api import (
    Completion,
    DecodeStats,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
)


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
        """Sync the weights, unless TRL has done so since they last changed.

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
    # Where vLLM reports none, 0 does no harm: TRL computes the log-probabilities for the loss.
    return Completion(
        reply,
        tuple(0.0 if each is None else float(each) for each in logprobs[:size]),
        stopped=bool(reply) and reply[-1] in request.stop_token_ids,
    )
