"""The loss of GRPO and its relatives, over the sampled tokens of any number of episodes.

Tokens have a weight each, so that the loss of a step is the sum over its tokens, however they are
divided into micro-batches. The formulas are TRL's, which a test compares with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ludus.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from trl import GRPOConfig as TRLConfig

LOSS_TYPES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo")
SCALES = ("group", "batch", "none")
UNSUPPORTED_FIELDS = {
    "top_entropy_quantile": 1.0, "entropy_coef": 0.0, "use_adaptive_entropy": False,
    "off_policy_mask_threshold": None, "num_iterations": 1, "use_bias_correction_kl": True,
    "multi_objective_aggregation": "sum_then_normalize",
}  # fmt: skip
"""Fields of TRL's config that change its loss in ways that are not implemented here."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of a token: its clipped policy gradient, and a penalty for leaving the reference."""

    kind: str = "dapo"
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    """Upper bound of the ratio, also if the advantage is negative."""
    beta: float = 0.0
    by_sequence: bool = False
    """Whether an episode has one ratio, the geometric mean of its tokens' ratios (GSPO)."""

    @classmethod
    def from_trl(cls, config: TRLConfig) -> Self:
        """The loss of TRL's config; raises if it is not implemented."""
        if config.loss_type not in LOSS_TYPES:
            raise ConfigError(
                f"`overrides`: loss_type {config.loss_type!r} is not supported. Use one of "
                f"{', '.join(LOSS_TYPES)}."
            )
        if config.scale_rewards not in SCALES:
            raise ConfigError(
                f"`overrides`: scale_rewards must be one of {', '.join(SCALES)}, got "
                f"{config.scale_rewards!r}."
            )
        for name, supported in UNSUPPORTED_FIELDS.items():
            value = getattr(config, name)
            if value != supported:
                raise ConfigError(
                    f"`overrides`: {name} must be {supported}, got {value}: `ludus.grpo` does not "
                    "implement it. TRL's trainer does."
                )
        high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        by_sequence = config.importance_sampling_level == "sequence"
        return cls(config.loss_type, config.epsilon, high, config.delta, config.beta, by_sequence)

    def __call__(
        self, logprobs: Tensor, sampling_logprobs: Tensor | None, advantages: Tensor,
        episode_index: Tensor, reference_logprobs: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The loss of each token; all arguments have a value per token.

        Args:
            logprobs: Under the model that is trained.
            sampling_logprobs: When the tokens were sampled; None: the same.
            episode_index: The episode of the token, counted from 0.
            reference_logprobs: Under the reference model, if there is a penalty.
        """
        import torch

        before = logprobs.detach() if sampling_logprobs is None else sampling_logprobs
        log_ratio = logprobs - before
        if self.by_sequence:
            sums = log_ratio.new_zeros(int(episode_index.max()) + 1 if len(episode_index) else 0)
            counts = torch.bincount(episode_index, minlength=len(sums)).clamp(min=1)
            log_ratio = (sums.index_add(0, episode_index, log_ratio) / counts)[episode_index]
        correction = ratio = log_ratio.exp()
        if self.kind == "cispo":
            loss = -ratio.clamp(max=self.epsilon_high).detach() * advantages * logprobs
        else:
            clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
            if self.delta is not None:
                ratio = ratio.clamp(max=self.delta)
            loss = -torch.min(ratio * advantages, clipped * advantages)
        if reference_logprobs is not None:
            # The tokens were sampled by the policy before: the ratio corrects for that.
            loss = loss + self.beta * correction * kl_estimate(logprobs, reference_logprobs)
        return loss

    def episode_weights(
        self, lengths: Tensor, counted: Tensor, *, total_tokens: float, total_episodes: float,
        max_tokens: int,
    ) -> Tensor:  # fmt: skip
        """The weight of each token of an episode.

        Args:
            lengths: Sampled tokens of each episode.
            counted: Whether the episode bears the loss.
            total_tokens: The sum of the counted lengths over all processes.
            total_episodes: The number of counted episodes over all processes.
            max_tokens: The token budget of an episode.
        """
        import torch

        if self.kind == "grpo":
            weights = 1 / (lengths.clamp(min=1) * max(1.0, total_episodes))
        elif self.kind == "dr_grpo":
            weights = torch.full_like(lengths, 1 / (max(1.0, total_episodes) * max_tokens))
        else:
            weights = torch.full_like(lengths, 1 / max(1.0, total_tokens))
        return weights * counted


def kl_estimate(logprobs: Tensor, other: Tensor) -> Tensor:
    """Estimate the KL divergence from `other` per token (k3: never negative)."""
    difference = other - logprobs
    return difference.exp() - difference - 1
