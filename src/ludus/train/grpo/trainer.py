"""GRPO's trainer. A step plays episodes, compares them, and trains on their tokens.

`GRPOTrainer.training_step` is the step; after it, TRL's trainer clips the gradient and updates the
weights, and `check_update` limits what the update did to the policy. Logging, callbacks, the
optimizer, checkpoints, adapters and the reference model are TRL's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from datasets import Dataset
from trl import GRPOTrainer as TRLTrainer
from trl.trainer.utils import use_adapter

from ludus.errors import ConfigError
from ludus.policy.device import release_gpu_memory
from ludus.policy.vision.training_images import episode_image_inputs
from ludus.train.callbacks import add_callback
from ludus.train.context import GRPOContext
from ludus.train.grpo.advantages import TurnValues
from ludus.train.grpo.group_rollouts import GroupRollouts
from ludus.train.grpo.grpo_callbacks import EVENTS, GRPOCallback
from ludus.train.grpo.learning_rate import (
    TrustRegion,
    WeightSnapshot,
    limit_update,
    restore_scheduled_lr,
    scale_schedule,
    warmup_schedule,
)
from ludus.train.grpo.logprobs import LogprobScorer, pad_episodes
from ludus.train.grpo.memory_budget import MemoryBudget
from ludus.train.grpo.packed_groups import EpisodeTokens
from ludus.train.grpo.policy_loss import PolicyLoss, kl_estimate
from ludus.train.grpo.step_batch import StepBatch, choose_evenly
from ludus.train.grpo.trl_grpo_config import max_micro_batch_rows
from ludus.train.trl_config import build_peft_config
from ludus.train.trl_trainers import TRLTrainerMixin

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from transformers import PreTrainedModel

    from ludus.data.episode import Episode

REWARM_STEPS = 5
"""After a rollback the optimizer has no moments yet, and its first updates would be the largest."""


MEASURED_EPISODES = 256
"""Number of a step's episodes, spread over all groups, on which its divergence is measured."""
MAX_TOKEN_KL = 1e4
"""Bounds the estimate for a token whose probability has become nearly 0."""


class GRPOTrainer(TRLTrainerMixin, TRLTrainer):  # type: ignore[misc]
    """TRL's trainer with Ludus's step.

    Args:
        rollouts: Plays the episodes of a step.
    """

    def __init__(
        self, context: GRPOContext, model: PreTrainedModel, callback: GRPOCallback,
        rollouts: GroupRollouts,
    ) -> None:  # fmt: skip
        config = context.config
        super().__init__(
            model=model, args=context.trl_config, processing_class=context.tokenizer,
            train_dataset=Dataset.from_dict({"prompt": [""] * (config.steps * config.groups)}),
            reward_funcs=_scored_by_rollouts,
            peft_config=build_peft_config(config.lora) if config.lora else None,
        )  # fmt: skip
        if self.is_sharded:
            # Whole weights are float32, and autocast rounds them, as without FSDP.
            self.accelerator.state.fsdp_plugin.mixed_precision_policy = None
        add_callback(self, callback, EVENTS)
        self.rollouts, self.distributed, self.say = (
            rollouts, context.distributed, context.progress.say,
        )  # fmt: skip
        self.policy_loss = PolicyLoss.from_trl(context.trl_config)
        self.corrects_mismatch = config.importance_correction
        self.vision = context.vision
        # Episodes of zero-variance groups have no policy gradient, but a penalty has one.
        self.skips_zero_variance = config.zero_variance_groups != "keep" and not self.beta
        self.trust_region: TrustRegion | None = callback.trust_region
        self.rate_factor = callback.health.rate_factor
        """The factor of the scheduled learning rate after rollbacks."""
        self.rolled_back_at: int | None = None
        self.memory = MemoryBudget(max_rows=max_micro_batch_rows(config))
        self._batch: StepBatch | None = None
        self._before_update: tuple[Tensor, WeightSnapshot] | None = None
        """The log-probabilities and the weights before the update of the current step."""
        self._scorer: LogprobScorer | None = None

    def training_step(
        self, model: PreTrainedModel, inputs: object, num_items_in_batch: object = None
    ) -> Tensor:
        """Play a step's episodes and compute its gradient; returns its loss."""
        self.first_step_started = True
        model.train()
        episodes = self.rollouts.play(self)
        advantages, compared = self.rollouts.advantages(self.scale_rewards)
        self._batch = batch = self._build_batch(episodes, advantages, compared)
        loss = self._backward(batch)
        if self.trust_region is not None and any(self.distributed.all_gather([batch.has_signal])):
            self._before_update = self._score_precisely(batch), WeightSnapshot(self._unwrapped)
        self.first_step_done = True
        return loss

    def check_update(self) -> None:
        """Halve the last update while it moves the policy too far; all ranks call it.

        The learning rate of the next steps follows the measured divergence.
        """
        if (region := self.trust_region) is None or self._before_update is None:
            return
        logprobs, weights = self._before_update
        self._before_update = None
        # Of the peak rate; the region's own factor does not count.
        rate = self.optimizer.param_groups[0]["lr"]
        fraction = rate / (self.lr_scheduler.base_lrs[0] * region.factor)
        made, kept, halvings = limit_update(
            weights, lambda: self._measure_kl(logprobs), region.bound(fraction)
        )
        self.log_metrics({"step_kl": kept, "halvings": halvings})
        if halvings:
            self.say(
                f"Step {self.state.global_step + 1:,} moved the policy by {made:.3g} nats per "
                f"episode; its update was halved {halvings} times, to {kept:.3g}"
            )
        region.update(made, fraction)

    @property
    def scorer(self) -> LogprobScorer:
        if self._scorer is None:
            self._scorer = LogprobScorer.for_model(
                self._unwrapped, self.accelerator, self.processing_class.pad_token_id,
                aux_loss=self.aux_loss_enabled, say=self.say,
                compiles=not self.args.gradient_checkpointing,
            )  # fmt: skip
        return self._scorer

    @property
    def _unwrapped(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.model)

    def _build_batch(
        self,
        episodes: Sequence[Episode],
        advantages: Sequence[TurnValues],
        compared: Sequence[bool],
    ) -> StepBatch:
        """The tokens of this process's episodes, with their advantages and weights.

        Episodes without a learning signal are left out. The loss is normalized by all that were
        compared with others: also by those that have exactly the mean reward of their group.
        """
        tokens = [EpisodeTokens.of(episode) for episode in episodes]
        lengths = torch.tensor([float(len(each.logprobs)) for each in tokens])
        counted = torch.ones(len(tokens))
        if self.skips_zero_variance:
            counted = torch.tensor([float(flag) for flag in compared])
        if self.mask_truncated_completions:
            counted *= torch.tensor([float(not episode.cut_off) for episode in episodes])
        signal = [any(values) for values in advantages]
        totals = self.distributed.all_gather([(
            float((lengths * counted).sum()), float(counted.sum()), sum(signal),
            sum(len(each.ids) for each in tokens),
        )])  # fmt: skip
        counted_tokens, counted_episodes, trained, all_tokens = map(sum, zip(*totals, strict=True))
        weights = self.policy_loss.episode_weights(
            lengths, counted, total_tokens=counted_tokens, total_episodes=counted_episodes,
            max_tokens=self.max_completion_length,
        )  # fmt: skip
        self.state.num_input_tokens_seen += all_tokens
        self.log_metrics({
            "trained": trained / (len(tokens) * self.distributed.world_size),
            "num_tokens": self.state.num_input_tokens_seen,
        })  # fmt: skip
        batch = StepBatch.build(episodes, tokens, advantages, weights, self.args.device)
        return batch.only(signal) if self.skips_zero_variance else batch

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add to the log entry of this step."""
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def _backward(self, batch: StepBatch) -> Tensor:
        """Compute the gradient of a step in parts that fit into memory; returns its loss.

        After an out-of-memory error it is computed again, in smaller parts.
        """
        while True:
            try:
                loss = self._backward_in_parts(batch)
                break
            except torch.OutOfMemoryError:
                # Handled below: until here the traceback's frames keep the activations alive.
                pass
            if self.is_sharded:
                # Other ranks wait for this one in the middle of a pass.
                raise self.memory.error(self.args.device)
            self.model.zero_grad(set_to_none=True)
            self.rollouts.free_decoder_memory()
            release_gpu_memory()
            if (failed := self.memory.halve()) is None:
                raise self.memory.error(self.args.device)
            self.say(
                f"The GPU ran out of memory with {failed:,} tokens at once; repeating the step "
                f"with at most {self.memory.max_tokens:,}"
            )
        self.distributed.average_gradients(self._unwrapped)
        return loss

    def _backward_in_parts(self, batch: StepBatch) -> Tensor:
        device = self.args.device
        total = torch.zeros((), device=device)
        entropy_sum, mismatch_sum, kl_sum = (torch.zeros((), device=device) for _ in range(3))
        parts, world_size = 0, self.distributed.world_size
        for part in self._parts(batch):
            reference = self._reference_logprobs(part) if self.beta else None
            with (
                self.memory.measure(self.scorer.size(part.episodes), device),
                self.scorer.score(part.episodes, self._images(part)) as scores,
            ):
                logprobs = scores.logprobs
                losses = self.policy_loss(
                    logprobs, part.sampling_logprobs if self.corrects_mismatch else None,
                    part.advantages, part.episode_index, reference,
                )  # fmt: skip
                # Gradients are averaged over processes, and weights add up over all of them.
                loss = (losses * part.weights).sum() * world_size
                if scores.aux_loss is not None:
                    share = len(part.episodes) / max(1, len(batch.episodes))
                    loss = loss + self.router_aux_loss_coef * scores.aux_loss * share
                self.accelerator.backward(loss)
            total += loss.detach()
            logprobs = logprobs.detach()
            parts += 1
            if scores.entropies is not None:
                entropy_sum += scores.entropies.detach().sum()
            mismatch_sum += (logprobs - part.sampling_logprobs).abs().sum()
            if reference is not None:
                kl_sum += kl_estimate(logprobs, reference).sum()
        sums = [
            *torch.stack([entropy_sum, mismatch_sum, kl_sum]).tolist(),
            batch.advantages.numel(),
        ]
        gathered = self.distributed.all_gather([sums])
        entropy, mismatch, kl, tokens = (sum(column) for column in zip(*gathered, strict=True))
        self.log_metrics({"micro_batches": parts})
        if tokens:
            self.log_metrics({"entropy": entropy / tokens, "mismatch": mismatch / tokens})
            if self.beta:
                self.log_metrics({"kl": kl / tokens})
        return total

    def _parts(self, batch: StepBatch) -> Iterator[StepBatch]:
        """Split the batch, in order, into parts as large as memory allows.

        With FSDP a forward pass gathers weights of all ranks, so all make the same number: ranks
        that are done compute a placeholder.
        """
        start = 0
        while True:
            remaining = start < len(batch.episodes)
            if not remaining and not self.is_sharded:
                return
            if self.is_sharded and not any(self.distributed.all_gather([remaining])):
                return
            stop = start
            if remaining:
                stop = self.memory.next_stop(batch.episodes, start, self.scorer.size, self)
            yield batch.part(start, stop) if remaining else batch.placeholder()
            start = stop

    def _score_precisely(self, batch: StepBatch) -> Tensor:
        """Log-probabilities of the sampled tokens of a step, or of episodes spread over it.

        They are exact enough to compare two policies that are close to each other.
        """
        some = batch.only(choose_evenly(len(batch.episodes), MEASURED_EPISODES))
        logprobs = [torch.zeros(0, device=self.args.device)]
        self.model.eval()
        with torch.no_grad():
            for part in self._parts(some):
                with self.scorer.score(part.episodes, self._images(part), precise=True) as scores:
                    logprobs.append(scores.logprobs)
        self.model.train()
        return torch.cat(logprobs)

    def _measure_kl(self, before: Tensor) -> float:
        """Divergence of the current policy from these log-probabilities, in nats per episode."""
        assert self._batch is not None
        per_token = kl_estimate(before, self._score_precisely(self._batch))
        episodes = min(len(self._batch.episodes), MEASURED_EPISODES)
        sums = self.distributed.all_gather(
            [(float(per_token.clamp(max=MAX_TOKEN_KL).sum()), episodes)]
        )
        return sum(kl for kl, _ in sums) / max(1, sum(count for _, count in sums))

    def _images(self, part: StepBatch) -> dict[str, Tensor]:
        """The image inputs of a part; empty for models or episodes without images."""
        if self.vision is None:
            return {}
        ids, _ = pad_episodes(part.episodes, self.processing_class.pad_token_id, self.args.device)
        inputs = episode_image_inputs(self.vision, part.source, ids)
        inputs.pop("num_images", None)
        return inputs

    def _reference_logprobs(self, part: StepBatch) -> Tensor:
        """Log-probabilities under the model that training started with."""
        model, scorer, adapter = self._unwrapped, self.scorer, nullcontext()
        if self.ref_model is not None:
            scorer = replace(scorer, model=self.ref_model, aux_loss=False)
        else:
            adapter = use_adapter(model, "ref" if "ref" in model.peft_config else None)
        with torch.no_grad(), adapter, scorer.score(part.episodes, self._images(part)) as scores:
            return scores.logprobs

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if (kind := self.args.lr_scheduler_type) in ("linear", "constant_with_warmup"):
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = scheduler = warmup_schedule(
                scheduler.optimizer, warmup_steps, num_training_steps if kind == "linear" else None
            )
        scale_schedule(scheduler, self._scale_of_rate)
        return scheduler

    def _scale_of_rate(self) -> float:
        """The factor of the scheduled learning rate."""
        factor = self.rate_factor
        if self.trust_region is not None:
            factor *= self.trust_region.factor
        if self.rolled_back_at is not None:
            steps = self.state.global_step - self.rolled_back_at
            factor *= min(1.0, (steps + 1) / (REWARM_STEPS + 1))
        return factor

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            restore_scheduled_lr(self.lr_scheduler)

    @property
    def _total_train_tokens(self) -> int:
        return int(self.state.num_input_tokens_seen)

    @_total_train_tokens.setter
    def _total_train_tokens(self, tokens: int) -> None:
        """Ignored: the count is in the trainer's state, which checkpoints restore."""


def _scored_by_rollouts(**_: object) -> list[float]:
    """Stands in for TRL's reward functions: episodes have their rewards already."""
    raise NotImplementedError


def build_trainer(
    context: GRPOContext, model: PreTrainedModel, callback: GRPOCallback, rollouts: GroupRollouts
) -> GRPOTrainer:
    """Build the trainer; raises for settings that TRL does not accept."""
    try:
        return GRPOTrainer(context, model, callback, rollouts)
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"TRL's trainer does not accept these settings: {reason}") from error
