"""TRL's GRPOTrainer with what Ludus adds: zero-variance groups are left out of a step, the learning
rate schedule gives every step a rate, and out-of-memory errors name the batch size that fits.

The loss, the optimizer and the advantages of all other groups are TRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ludus.errors import ConfigError
from ludus.policy.vision.processor import VisionProcessor
from ludus.train.callbacks import add_callback
from ludus.train.distributed import Distributed
from ludus.train.grpo.gpu_memory import (
    StepSnapshot,
    divisors_below,
    find_largest_batch,
    gpu_memory_error,
    longest_rows,
    release_gpu_memory,
    reserve_optimizer_memory,
)
from ludus.train.grpo.group_rollouts import GroupRollouts
from ludus.train.grpo.groups import zero_variance_mask
from ludus.train.grpo.grpo_callbacks import EVENTS, GRPOCallback
from ludus.train.grpo.grpo_context import GRPOContext
from ludus.train.grpo.lr_schedule import restore_scheduled_lr, warmup_linear_schedule
from ludus.train.grpo.rewards import sum_rewards
from ludus.train.grpo.rollout_batch import Batch, choose_batch_rows, select_batch_rows
from ludus.train.trl_config import build_peft_config
from ludus.train.trl_trainers import TrainerMixin


class GRPOMixin(TrainerMixin):
    """Mixed into TRL's GRPOTrainer."""

    distributed: Distributed
    rollouts: GroupRollouts | None = None
    vision: VisionProcessor | None = None
    skips_zero_variance = False
    """Whether rows without a learning signal are left out."""
    _zero_variance: Any
    """For each row of the current step, over all ranks: whether its group has zero variance."""
    _scored: Any
    """For each row of the current step, over all ranks: whether it has a reward."""
    _batch: Any = None
    """The batch in the forward or backward pass."""
    _step_snapshot: StepSnapshot

    @property
    def _total_train_tokens(self) -> int:
        return int(cast(Any, self).state.num_input_tokens_seen)

    @_total_train_tokens.setter
    def _total_train_tokens(self, tokens: int) -> None:
        """Ignored: the count is in the trainer's state, which checkpoints restore."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        trainer = cast(Any, self)
        scheduler = cast(Any, super()).create_scheduler(num_training_steps, optimizer)
        if trainer.args.lr_scheduler_type != "linear":
            return scheduler
        warmup_steps = trainer.args.get_warmup_steps(num_training_steps)
        trainer.lr_scheduler = warmup_linear_schedule(
            scheduler.optimizer, warmup_steps, num_training_steps
        )
        return trainer.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        cast(Any, super())._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            restore_scheduled_lr(cast(Any, self).lr_scheduler)

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
        self._batch = inputs
        return cast(Any, super()).compute_loss(model, inputs, *rest, **kwargs)

    def training_step(self, model: Any, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
        import torch

        trainer, self._batch = cast(Any, self), None
        if trainer._step % trainer.args.gradient_accumulation_steps == 0:
            self._step_snapshot = StepSnapshot.take(trainer)
        try:
            return super().training_step(model, inputs, *rest, **kwargs)
        except torch.OutOfMemoryError:
            # Handled below: until here the traceback's frames keep the activations alive.
            pass
        largest = self._find_largest_batch(model)
        self._step_snapshot.restore(trainer)
        args = trainer.args
        raise gpu_memory_error(args.per_device_train_batch_size, largest, args.device)

    def _find_largest_batch(self, model: Any) -> int | None:
        """The largest batch size for which the failed batch fits into the GPU's memory."""
        trainer, batch = cast(Any, self), self._batch
        batch_size = trainer.args.per_device_train_batch_size
        episodes = batch_size * trainer.args.steps_per_generation
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if batch is None or self.vision is not None or sharded:
            # Single rows cannot be tried here.
            return max(divisors_below(episodes, batch_size // 2 + 1), default=None)
        trainer.stop_graph_replay()
        unwrapped = trainer.accelerator.unwrap_model(model)

        def try_batch(size: int) -> None:
            unwrapped.zero_grad(set_to_none=True)
            reserved = reserve_optimizer_memory(trainer)
            rows = select_batch_rows(batch, longest_rows(batch, size))
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(unwrapped, rows)
            trainer.accelerator.backward(loss)
            del reserved

        unwrapped.zero_grad(set_to_none=True)
        try:
            return find_largest_batch(try_batch, divisors_below(episodes, len(batch["prompt_ids"])))
        finally:
            unwrapped.zero_grad(set_to_none=True)
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

        from ludus.policy.vision.trainer_inputs import episode_image_inputs

        batch = cast(Any, super())._generate_and_score_completions(inputs)
        trainer = cast(Any, self)
        if not trainer.model.training:
            return batch
        count = len(batch["advantages"])
        first = self.distributed.rank * count
        zero_variance = self._zero_variance[first : first + count]
        scored = self._scored[first : first + count]
        # The mean of equal rewards may be rounded, and the rounding error divided by a deviation of
        # nearly 0 would be a large advantage made of noise.
        batch["advantages"] = batch["advantages"].masked_fill(zero_variance, 0.0)
        if self.vision is not None and self.rollouts is not None:
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            batch |= episode_image_inputs(self.vision, self.rollouts.episodes, ids)
        has_signal = (batch["advantages"] != 0).tolist()
        if self.skips_zero_variance:
            # Image tensors are not laid out by rows, so that no rows can be dropped.
            (any_images,) = self.distributed.all_reduce_max([int("pixel_values" in batch)])
            if not any_images:
                batch = self._drop_rows(batch, has_signal, scored & ~zero_variance)
        flags = self.distributed.all_gather(has_signal)
        trainer._metrics["train"]["trained"].append(sum(flags) / len(flags))
        return batch

    def _drop_rows(self, batch: Batch, has_signal: Sequence[bool], counted: Any) -> Batch:
        """Drop rows with an advantage of 0.

        The loss is normalized by the tokens of all `counted` rows: also by those of rows with
        exactly the mean reward of their group, which have no gradient.
        """
        trainer = cast(Any, self)
        mask = batch["completion_mask"]
        if "tool_mask" in batch:
            mask = mask * batch["tool_mask"]
        loss_tokens = trainer.accelerator.gather(mask[counted.to(mask.device)].sum()).sum()
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
    # Rows of zero-variance groups have no policy gradient, but they have a KL penalty.
    trainer.skips_zero_variance = (
        config.zero_variance_groups != "keep" and not context.trl_config.beta
    )
    return trainer
