"""A trust region for GRPO: the learning rate follows how far a step moves the policy.

Which rate is right depends on the model, the length of episodes, the number of groups and the
rewards; one that is too high destroys the policy within few steps. How far a step moves it can be
measured: some rows of the step are scored again after it, and their log-probabilities compared with
those before. The divergence per episode grows with the square of the rate, so that the rate for a
wanted divergence is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from ludus.train.grpo.rollout_batch import Batch, sampled_token_mask, select_batch_rows

MAX_PROBE_ROWS, MAX_PROBE_TOKENS = 32, 16_384
"""Rows of a step that are scored before and after it, and their padded tokens."""
MIN_CHANGE, MAX_CHANGE = 0.5, 1.25
"""By how much the factor changes after a step at most. A single large step does more harm than some
small ones, so it falls faster than it rises."""
MIN_FACTOR, MAX_FACTOR = 1 / 64, 8.0
_MAX_LOG_RATIO = 10.0


@dataclass(slots=True)
class TrustRegion:
    """Finds the factor of the learning rate for which a step has the target divergence."""

    target_kl: float
    """Divergence per episode, in nats."""
    factor: float = 1.0

    def update(self, step_kl: float, rate_fraction: float) -> None:
        """Adapt the factor after a step.

        Args:
            step_kl: The measured divergence per episode.
            rate_fraction: The scheduled rate of that step, as a fraction of the peak.
        """
        target = self.target_kl * rate_fraction**2
        change = sqrt(target / step_kl) if step_kl > 0 else MAX_CHANGE
        change = min(MAX_CHANGE, max(MIN_CHANGE, change))
        self.factor = min(MAX_FACTOR, max(MIN_FACTOR, self.factor * change))


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows of a step, and their log-probabilities before it.

    They are computed in float32: what rounding to bfloat16 adds to the divergence is as large as a
    careful step, and does not depend on the rate.
    """

    batch: Batch
    logprobs: Any

    @classmethod
    def take(cls, model: Any, batch: Batch) -> Probe:
        """Score rows spread over the batch, because rows of a group are neighbours."""
        count = len(batch["prompt_ids"])
        length = batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1]
        num_rows = min(count, MAX_PROBE_ROWS, max(1, MAX_PROBE_TOKENS // length))
        rows = range(0, count, max(1, count // num_rows))[:num_rows]
        selected = select_batch_rows(batch, list(rows))
        return cls(selected, _completion_logprobs(model, selected))

    def measure_kl(self, model: Any) -> float:
        """The divergence per episode between the policy before the step and now."""
        log_ratio = _completion_logprobs(model, self.batch) - self.logprobs
        log_ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        # An estimate that is never negative, and has less variance than the mean of log ratios.
        kl = (log_ratio.exp() - 1 - log_ratio) * sampled_token_mask(self.batch)
        return float(kl.sum(1).mean())


def _completion_logprobs(model: Any, batch: Batch) -> Any:
    """Log-probabilities of the completions' tokens."""
    import torch

    from ludus.train.grpo.prefix_sharing import exact_logprobs

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return exact_logprobs(model, ids, mask)[:, -batch["completion_ids"].shape[1] :]
