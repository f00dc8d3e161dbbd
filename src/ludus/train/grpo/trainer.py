"""TRL's GRPOTrainer with what Ludus adds: zero-variance groups are left out of a step, the learning
rate schedule gives every step a rate, a step is trained in micro-batches that fit into memory, and
replies may have advantages of their own (`ludus.train.grpo.credit`).

The loss, the optimizer and the advantages of whole episodes are TRL's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from types import MappingProxyType
from typing import Any, cast

from ludus.errors import ConfigError
from ludus.policy.device import release_gpu_memory
from ludus.policy.vision.processor import VisionProcessor
from ludus.train.callbacks import add_callback
from ludus.train.distributed import Distributed
from ludus.train.grpo.credit import token_advantages
from ludus.train.grpo.group_rollouts import GroupRollouts
from ludus.train.grpo.groups import zero_variance_mask
from ludus.train.grpo.grpo_callbacks import EVENTS, GRPOCallback
from ludus.train.grpo.grpo_context import GRPOContext
from ludus.train.grpo.lr_schedule import (
    restore_scheduled_lr,
    scale_schedule,
    warmup_linear_schedule,
)
from ludus.train.grpo.micro_batches import (
    MicroBatcher,
    StepSnapshot,
    free_gpu_bytes,
    out_of_memory_error,
    padded_tokens,
)
from ludus.train.grpo.rewards import sum_rewards
from ludus.train.grpo.rollout_batch import (
    Batch,
    choose_batch_rows,
    count_loss_tokens,
    logprob_mismatch,
    sampled_token_mask,
    select_batch_rows,
)
from ludus.train.grpo.trl_grpo_config import max_micro_batch_rows
from ludus.train.grpo.trust_region import Probe, TrustRegion
from ludus.train.trl_config import build_peft_config
from ludus.train.trl_trainers import TrainerMixin

_MIN_FREED_FRACTION = 0.5
"""The decoder's cache is given back if it is larger than this fraction of free memory."""
_MEAN_OVER_ROWS = ("grpo", "sapo", "luspo", "dr_grpo")
"""Types of TRL's loss that are means over rows; the others are sums or means over tokens."""


class GRPOMixin(TrainerMixin):
    """Mixed into TRL's GRPOTrainer."""

    distributed: Distributed
    say: Callable[[str], None]
    rollouts: GroupRollouts | None = None
    vision: VisionProcessor | None = None
    skips_zero_variance = False
    """Whether rows without a learning signal are left out."""
    _zero_variance: Any
    """For each row of the current step, over all ranks: whether its group has zero variance."""
    _scored: Any
    """For each row of the current step, over all ranks: whether it has a reward."""
    rate_factor = 1.0
    """What the scheduled learning rate is multiplied by after rollbacks."""
    trust_region: TrustRegion | None = None
    _probe: Probe | None = None
    """Rows of the current step, by which the step is measured."""
    _step_lr = 0.0
    """The learning rate of the current step."""
    micro_batcher: MicroBatcher
    corrects_mismatch = True
    """Whether the loss weighs tokens by their probability now over that when they were sampled."""
    _micro_batch: Mapping[str, Any] = MappingProxyType({})
    """The rows in the forward or backward pass."""

    @property
    def _total_train_tokens(self) -> int:
        return int(cast(Any, self).state.num_input_tokens_seen)

    @_total_train_tokens.setter
    def _total_train_tokens(self, tokens: int) -> None:
        """Ignored: the count is in the trainer's state, which checkpoints restore."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        trainer = cast(Any, self)
        scheduler = cast(Any, super()).create_scheduler(num_training_steps, optimizer)
        if trainer.args.lr_scheduler_type == "linear":
            warmup_steps = trainer.args.get_warmup_steps(num_training_steps)
            trainer.lr_scheduler = scheduler = warmup_linear_schedule(
                scheduler.optimizer, warmup_steps, num_training_steps
            )
        scale_schedule(scheduler, self._scale_of_rate)
        return scheduler

    def _scale_of_rate(self) -> float:
        """What the scheduled learning rate is multiplied by."""
        trusted = 1.0 if self.trust_region is None else self.trust_region.factor
        return self.rate_factor * trusted

    def adapt_learning_rate(self) -> None:
        """Measure the step that was just made, and adapt the rate of the next one to it."""
        trainer, region = cast(Any, self), self.trust_region
        if region is None:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        measured = [] if self._probe is None else [self._probe.measure_kl(model)]
        self._probe = None
        if values := self.distributed.all_gather(measured):
            step_kl = fmean(values)
            trainer._metrics["train"]["step_kl"].append(step_kl)
            peak = trainer.lr_scheduler.base_lrs[0] * self._scale_of_rate()
            region.update(step_kl, self._step_lr / peak)
            restore_scheduled_lr(trainer.lr_scheduler)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        cast(Any, super())._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            restore_scheduled_lr(cast(Any, self).lr_scheduler)

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
        trainer = cast(Any, self)
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if sharded or not trainer.model.training:
            return cast(Any, super()).compute_loss(model, inputs, *rest, **kwargs)
        loss = self._backward_in_micro_batches(model, inputs)
        # The gradients are there already: the trainer's own backward pass adds nothing to them.
        return loss.requires_grad_()

    def _backward_in_micro_batches(self, model: Any, batch: Batch) -> Any:
        """Forward and backward pass of a step's rows; returns its loss.

        After an out-of-memory error they are repeated in smaller micro-batches.
        """
        import torch

        trainer, snapshot = cast(Any, self), StepSnapshot.take(cast(Any, self))
        while True:
            try:
                loss = self._backward(model, batch)
                break
            except torch.OutOfMemoryError:
                # Handled below: until here the traceback's frames keep the activations alive.
                pass
            failed_tokens = padded_tokens(self._micro_batch)
            self._micro_batch = {}
            snapshot.restore(trainer)
            trainer.model.zero_grad(set_to_none=True)
            self._release_memory()
            if not self.micro_batcher.halve(failed_tokens):
                raise out_of_memory_error(failed_tokens, trainer.args.device)
            self.say(
                f"The GPU ran out of memory with {failed_tokens:,} tokens at once; repeating the "
                f"step with at most {self.micro_batcher.max_tokens:,}"
            )
        self.distributed.average_gradients(trainer.model)
        return loss

    def _backward(self, model: Any, batch: Batch) -> Any:
        trainer, self._probe = cast(Any, self), None
        self._step_lr = trainer.optimizer.param_groups[0]["lr"]
        unwrapped = trainer.accelerator.unwrap_model(model)
        micro_batches = self.micro_batcher.split(batch, trainer)
        if len(micro_batches) > 1:
            self.free_decoder_memory()
            micro_batches = self.micro_batcher.split(batch, trainer)
        # The measurement below reads its rows, and may run out of memory as well.
        self._micro_batch = micro_batches[0]
        trainer._metrics["train"]["micro_batches"].append(len(micro_batches))
        measurable = "pixel_values" not in batch and bool(batch["advantages"].any())
        if self.trust_region is not None and measurable:
            self._probe = Probe.take(unwrapped, micro_batches[0])
        total = 0.0
        with self._independent_ranks(), trainer.graph_replay(len(micro_batches) == 1):
            for micro_batch in micro_batches:
                self._micro_batch = micro_batch
                with (
                    self._share_of_step(micro_batch, batch) as inputs,
                    trainer.compute_loss_context_manager(),
                ):
                    loss = cast(Any, super()).compute_loss(unwrapped, inputs)
                trainer.accelerator.backward(loss)
                total += loss.detach()
        self._micro_batch = {}
        return total

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        scores = cast(Any, super())._get_per_token_logps_and_entropies(*args, **kwargs)
        if torch.is_grad_enabled() and self._micro_batch:
            mismatch = logprob_mismatch(self._micro_batch, scores[0].detach())
            if mismatch is not None:
                cast(Any, self)._metrics["train"]["mismatch"].append(mismatch)
        return scores

    @contextmanager
    def _share_of_step(self, micro_batch: Batch, batch: Batch) -> Iterator[Batch]:
        """TRL's loss of a micro-batch becomes its share of the step's loss.

        TRL averages over rows or tokens of what it is given, or divides by `num_items_in_batch`.
        """
        trainer = cast(Any, self)
        counts = [len(each["prompt_ids"]) for each in (micro_batch, batch)]
        if trainer.loss_type not in _MEAN_OVER_ROWS:
            counts = [max(1, int(count_loss_tokens(each))) for each in (micro_batch, batch)]
        share = counts[0] / counts[1]
        accumulation_steps = trainer.current_gradient_accumulation_steps
        trainer.current_gradient_accumulation_steps = accumulation_steps / share
        try:
            yield {**micro_batch, "num_items_in_batch": batch["num_items_in_batch"] * share}
        finally:
            trainer.current_gradient_accumulation_steps = accumulation_steps

    @contextmanager
    def _independent_ranks(self) -> Iterator[None]:
        """TRL's metrics are those of this rank: ranks may have different numbers of batches."""
        accelerator = cast(Any, self).accelerator
        if self.distributed.world_size == 1:
            yield
            return
        names = ("gather", "gather_for_metrics", "reduce")
        for name in names:
            setattr(accelerator, name, lambda value, *_, **__: value)
        try:
            yield
        finally:
            for name in names:
                delattr(accelerator, name)

    def free_decoder_memory(self) -> None:
        """Free the decoder's cache where it takes a large part of what training could use.

        It is not worth it for little: CUDA graphs of decoding are captured again.
        """
        if self.rollouts is not None and cast(Any, self).args.device.type == "cuda":
            free_bytes = free_gpu_bytes(cast(Any, self).args.device)
            self.rollouts.free_decoder_memory(larger_than=int(_MIN_FREED_FRACTION * free_bytes))

    def _release_memory(self) -> None:
        """Free all that a step can do without, after it ran out of memory."""
        if self.rollouts is not None:
            self.rollouts.free_decoder_memory()
        cast(Any, self).release_graphs()
        release_gpu_memory()

    def _calculate_rewards(self, *args: Any) -> Any:
        trainer, rewards = cast(Any, self), cast(Any, super())._calculate_rewards(*args)
        compared = rewards
        if trainer.multi_objective_aggregation == "sum_then_normalize":
            compared = sum_rewards(rewards, trainer.reward_weights.to(rewards.device))
        self._zero_variance = zero_variance_mask(compared, trainer.num_generations)
        self._scored = ~compared.isnan().all(1)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        import torch

        from ludus.policy.vision.training_images import episode_image_inputs

        batch = cast(Any, super())._generate_and_score_completions(inputs)
        trainer = cast(Any, self)
        if not trainer.model.training:
            return batch
        if self.rollouts is not None and self.rollouts.config.credit == "turn":
            advantages, flags = self.rollouts.turn_advantages(trainer.scale_rewards)
            batch["advantages"] = token_advantages(advantages, sampled_token_mask(batch))
            groups = torch.tensor(flags, device=self._zero_variance.device)
            self._zero_variance = groups.repeat_interleave(trainer.num_generations)
        count = len(batch["advantages"])
        first = self.distributed.rank * count
        zero_variance = self._zero_variance[first : first + count]
        scored = self._scored[first : first + count]
        # The mean of equal rewards may be rounded, and the rounding error divided by a deviation of
        # nearly 0 would be a large advantage made of noise.
        advantages = batch["advantages"].view(count, -1).masked_fill(zero_variance[:, None], 0.0)
        batch["advantages"] = advantages.view_as(batch["advantages"])
        if self.vision is not None and self.rollouts is not None:
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            batch |= episode_image_inputs(self.vision, self.rollouts.episodes, ids)
        if self.corrects_mismatch and "sampling_per_token_logps" in batch:
            # TRL multiplies by the ratio of probabilities, clipped. Without these it assumes that
            # decoder and trainer compute the same.
            batch.setdefault("old_per_token_logps", batch["sampling_per_token_logps"])
        has_signal = advantages.any(1).tolist()
        if self.skips_zero_variance:
            # Image tensors are not laid out by rows, so that no rows can be dropped.
            (any_images,) = self.distributed.all_reduce_max([int("pixel_values" in batch)])
            if not any_images:
                batch = self._drop_rows(batch, has_signal, scored & ~zero_variance)
        flags = self.distributed.all_gather(has_signal)
        trainer._metrics["train"]["trained"].append(sum(flags) / len(flags))
        return batch

    def _drop_rows(self, batch: Batch, has_signal: Sequence[bool], counted: Any) -> Batch:
        """Drop rows whose advantages are 0.

        The loss is normalized by the tokens of all `counted` rows: also by those of rows with
        exactly the mean reward of their group, which have no gradient.
        """
        trainer = cast(Any, self)
        loss_tokens = trainer.accelerator.gather(count_loss_tokens(batch, counted)).sum()
        batches = int(trainer.args.steps_per_generation)
        # All ranks must keep the same number of rows, and all batches too.
        (size,) = self.distributed.all_reduce_max([-(-sum(has_signal) // batches) or 1])
        rows = choose_batch_rows(has_signal, size * batches)
        selected = select_batch_rows(batch, rows)
        return {**selected, "num_items_in_batch": loss_tokens}


def build_trainer(
    context: GRPOContext, model: Any, callback: GRPOCallback, rollouts: GroupRollouts | None,
    **trainer_kwargs: Any,
) -> Any:  # fmt: skip
    """Build TRL's GRPOTrainer. `trainer_kwargs` are its data set, rewards and rollout functions."""
    import trl

    from ludus.train.grpo.prefix_sharing import PrefixSharingMixin

    config = context.config
    trainer_class = type("LudusGRPOTrainer", (GRPOMixin, PrefixSharingMixin, trl.GRPOTrainer), {})
    try:
        trainer: Any = trainer_class(
            model=model, args=context.trl_config, processing_class=context.tokenizer,
            peft_config=build_peft_config(config.lora) if config.lora else None, **trainer_kwargs,
        )  # fmt: skip
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"TRL's trainer does not accept these settings: {reason}") from error
    add_callback(trainer, callback, EVENTS)
    trainer.distributed, trainer.say = context.distributed, context.progress.say
    trainer.rollouts, trainer.vision = rollouts, context.vision
    trainer.rate_factor = callback.health.rate_factor
    trainer.trust_region = callback.trust_region
    trainer.corrects_mismatch = config.importance_correction
    trainer.micro_batcher = MicroBatcher(max_rows=max_micro_batch_rows(config))
    # Rows of zero-variance groups have no policy gradient, but they have a KL penalty.
    trainer.skips_zero_variance = (
        config.zero_variance_groups != "keep" and not context.trl_config.beta
    )
    return trainer
