"""TRL's vLLM as an engine: requests in, sampled ids out, on the weights that TRL keeps up to date.

Where vLLM runs, in this process or on a server, is TRL's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.engine.engine_api import (
    Completion,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
)


class VllmEngine:
    """Answers a batch with one call."""

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
        asked = [at for at in range(len(requests)) if is_wanted(at)]
        if not asked:
            return
        replies, logprobs = self._generate([requests[at] for at in asked])
        for at, ids, found in zip(asked, replies, logprobs, strict=True):
            sampled = _truncate(requests[at], ids, [each[0] for each in found])
            self.stats.sampled_tokens += len(sampled.ids)
            deliver(at, sampled)

    def refresh(self) -> None:
        """Hand the weights over, unless TRL has done so since they last changed.

        It does so before a step's rollouts; held-out tasks are played after the step.
        """
        trainer = self._trainer
        if trainer._last_loaded_step != trainer.state.global_step:
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step

    def _generate(self, requests: Sequence[Request]) -> tuple[Any, Any]:
        vllm = self._trainer.vllm_generation
        usual = vllm.max_completion_length
        # It has one limit for all; whoever may have less is cut.
        vllm.max_completion_length = max(request.max_tokens for request in requests)
        prompts = [list(request.ids) for request in requests]
        try:
            made = vllm.generate(prompts=prompts, images=None, num_generations=1)
        finally:
            # TRL's own loop goes by it too.
            vllm.max_completion_length = usual
        return made[1], made[2]


def _truncate(request: Request, ids: Sequence[int], logprobs: Sequence[float | None]) -> Completion:
    """Up to its first stop, within its budget."""
    ends = [at + 1 for at, token in enumerate(ids) if token in request.stop_token_ids]
    size = min([request.max_tokens, len(ids), *ends[:1]])
    kept = tuple(ids[:size])
    # A log-probability that vLLM could not tell is nowhere trained on: TRL computes its own.
    return Completion(
        kept,
        tuple(0.0 if each is None else float(each) for each in logprobs[:size]),
        stopped=bool(kept) and kept[-1] in request.stop_token_ids,
    )
