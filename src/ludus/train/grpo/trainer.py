"""TRL's GRPOTrainer, with what Ludus adds: groups that teach nothing are left out of a step.

The loss, the optimizer and the advantages of groups that teach are TRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ludus.data.reward_variance import REWARD_TOLERANCE
from ludus.errors import ConfigError
from ludus.policy.vision.processor import VisionProcessor
from ludus.train.callbacks import add_callback
from ludus.train.grpo.gpu_memory import (
    StepSnapshot,
    divisors_below,
    find_largest_batch,
    longest_rows,
    out_of_memory_error,
    release_gpu_memory,
    reserve_optimizer_memory,
)
from ludus.train.grpo.group_rollouts import GroupRollouts
from ludus.train.grpo.grpo_callbacks import GRPOCallbacks
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.trl_trainers import TrainerMixin, build_peft_config

_EVENTS = ("on_step_begin", "on_step_end", "on_epoch_end", "on_log")
_LEFT_PADDED = ("prompt_ids", "prompt_mask")
_RIGHT_PADDED = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps",
    "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio",
)  # fmt: skip


class GRPOMixin(TrainerMixin):
    """Laid over TRL's trainer."""

    rollouts: GroupRollouts | None = None
    eyes: VisionProcessor | None = None
    leaves_out = False
    """Whether groups that teach nothing are left out."""
    _zero_variance: Any
    """Of the newest step, for each row of all processes: whether its group teaches nothing."""
    _scored: Any
    """And whether it has a reward at all."""
    _batch: Any = None
    """What is being learned from."""
    _step_snapshot: StepSnapshot
    """How the step began that is being made."""

    @property
    def _total_train_tokens(self) -> int:
        return int(cast(Any, self).state.num_input_tokens_seen)

    @_total_train_tokens.setter
    def _total_train_tokens(self, tokens: int) -> None:
        """It is in the trainer's state, which a checkpoint brings back."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        us, made = (
            cast(Any, self),
            cast(Any, super()).create_scheduler(num_training_steps, optimizer),
        )
        if us.args.lr_scheduler_type == "linear":
            rising = us.args.get_warmup_steps(num_training_steps)
            made = us.lr_scheduler = warmup_linear_schedule(
                made.optimizer, rising, num_training_steps
            )
        return made

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        cast(Any, super())._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            restore_scheduled_lr(cast(Any, self).lr_scheduler)

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        self._batch = inputs
        return cast(Any, super()).compute_loss(model, inputs, *rest, **more)

    def training_step(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        import torch

        us, self._batch = cast(Any, self), None
        if us._step % us.args.gradient_accumulation_steps == 0:
            self._step_snapshot = StepSnapshot.take(us)
        try:
            return super().training_step(model, inputs, *rest, **more)
        except torch.OutOfMemoryError:
            # Told below: as long as it is handled, its frames hold on to the batch's activations.
            pass
        fitting = self._find_largest_batch(model)
        self._step_snapshot.restore(us)
        raise out_of_memory_error(us.args.per_device_train_batch_size, fitting, us.args.device)

    def _find_largest_batch(self, model: Any) -> int | None:
        """The largest batch size with which the batch that failed could be learned from."""
        us, batch = cast(Any, self), self._batch
        episodes = us.args.per_device_train_batch_size * us.args.steps_per_generation
        if batch is None or self.eyes is not None or us.is_deepspeed_enabled or us.is_fsdp_enabled:
            # Rows cannot be tried by themselves there.
            half = divisors_below(episodes, us.args.per_device_train_batch_size // 2 + 1)
            return max(half, default=None)
        us.stop_playback()
        core = us.accelerator.unwrap_model(model)

        def attempt(size: int) -> None:
            core.zero_grad(set_to_none=True)
            room = reserve_optimizer_memory(us)
            rows = select_rows(batch, longest_rows(batch, size))
            with us.compute_loss_context_manager():
                loss = us.compute_loss(core, rows)
            us.accelerator.backward(loss)
            del room

        core.zero_grad(set_to_none=True)
        try:
            return find_largest_batch(attempt, divisors_below(episodes, len(batch["prompt_ids"])))
        finally:
            core.zero_grad(set_to_none=True)
            release_gpu_memory()

    def _calculate_rewards(self, *given: Any) -> Any:
        us, rewards = cast(Any, self), cast(Any, super())._calculate_rewards(*given)
        parts = rewards
        if us.multi_objective_aggregation == "sum_then_normalize":
            parts = sum_rewards(rewards, us.reward_weights.to(rewards.device))
        self._zero_variance, self._scored = (
            zero_variance_mask(parts, us.num_generations),
            ~parts.isnan().all(1),
        )
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = cast(Any, super())._generate_and_score_completions(inputs)
        us = cast(Any, self)
        if not us.model.training:
            return batch
        rows = len(batch["advantages"])
        first = self.callback.distributed.rank * rows
        mine, scored = (each[first : first + rows] for each in (self._zero_variance, self._scored))
        batch["advantages"] = batch["advantages"].masked_fill(mine, 0.0)
        if self.eyes is not None and self.rollouts is not None:
            batch |= _image_inputs(self.eyes, self.rollouts, batch)
        teaches = (batch["advantages"] != 0).tolist()
        if self.leaves_out and not self._any_images(batch):
            batch = self._drop_zero_advantage_rows(batch, teaches, scored & ~mine)
        flags = self.callback.distributed.all_gather(teaches)
        us._metrics["train"]["trained"].append(sum(flags) / len(flags))
        return batch

    def _any_images(self, batch: dict[str, Any]) -> bool:
        """Whether there are pictures in any process, which are not laid out by rows."""
        (shows,) = self.callback.distributed.all_reduce_max([int("pixel_values" in batch)])
        return bool(shows)

    def _drop_zero_advantage_rows(
        self, batch: dict[str, Any], teaches: Sequence[bool], counts: Any
    ) -> dict[str, Any]:
        """Without the rows of which nothing is learned.

        The loss is a mean over all that count, also over those with exactly the mean of their
        group, which have no gradient.
        """
        us = cast(Any, self)
        items = us.accelerator.gather(_count_loss_tokens(batch, counts)).sum()
        chunks = int(us.args.steps_per_generation)
        # What each process counts and averages must be as many rows in all of them.
        (size,) = self.callback.distributed.all_reduce_max([-(-sum(teaches) // chunks) or 1])
        made = select_rows(batch, rows_to_keep(teaches, size * chunks))
        return {**made, "num_items_in_batch": items}


def warmup_linear_schedule(optimizer: Any, warmup_steps: int, steps: int) -> Any:
    """The rate of every step. The first and the last have one too: their episodes were not played
    for nothing."""
    from torch.optim.lr_scheduler import LambdaLR

    def share(step: int) -> float:
        return min(
            (step + 1) / (warmup_steps + 1), max(0, steps - step) / max(1, steps - warmup_steps)
        )

    return LambdaLR(optimizer, share)


def restore_scheduled_lr(scheduler: Any) -> None:
    """Set the rate of the next step by the schedule as it is now.

    A checkpoint brings back the rate of the schedule that it was made under. Where a run was
    extended that is 0, from the end of the shorter one.
    """
    from torch.optim.lr_scheduler import LambdaLR

    if not isinstance(scheduler, LambdaLR):
        return
    rates = [
        base * share(scheduler.last_epoch)
        for base, share in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates


def sum_rewards(rewards: Any, weights: Any) -> Any:
    """What each row is worth, as a column; not a number where nothing was scored."""
    scored = ~rewards.isnan().all(1)
    return (rewards * weights).nansum(1).where(scored, float("nan")).unsqueeze(1)


def zero_variance_mask(parts: Any, size: int) -> Any:
    """For each row, whether all scored members of its group have the same rewards."""
    groups = parts.double().view(-1, size, parts.shape[1])
    most = groups.nan_to_num(nan=float("-inf")).amax(1)
    least = groups.nan_to_num(nan=float("inf")).amin(1)
    # A part that nobody has is infinitely far below itself.
    same = most - least <= REWARD_TOLERANCE * most.abs().maximum(least.abs()).clamp(min=1.0)
    return same.all(1).repeat_interleave(size)


def rows_to_keep(teaches: Sequence[bool], size: int) -> list[int]:
    """The rows that teach something, filled up to so many with others: of their own they have no
    gradient."""
    kept = [row for row, flag in enumerate(teaches) if flag]
    others = [row for row, flag in enumerate(teaches) if not flag]
    return sorted([*kept, *others[: size - len(kept)]])


def select_rows(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Only these rows, without the padding that only others needed."""
    import torch

    made = {}
    count = len(batch["prompt_ids"])
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == count:
            value = value[torch.tensor(rows, device=value.device)]
        elif isinstance(value, list) and len(value) == count:
            value = [value[row] for row in rows]
        made[name] = value
    left, right = _max_length(made["prompt_mask"]), _max_length(made["completion_mask"])
    for name in _LEFT_PADDED:
        made[name] = made[name][:, -left:]
    for name in _RIGHT_PADDED:
        if name in made and made[name].ndim == 2 and made[name].shape[1] > 1:
            made[name] = made[name][:, :right]
    return made


def _max_length(mask: Any) -> int:
    return max(1, int(mask.sum(1).max()))


def _image_inputs(
    eyes: VisionProcessor, rollouts: GroupRollouts, batch: dict[str, Any]
) -> dict[str, Any]:
    """The pictures of these rows."""
    import torch

    from ludus.policy.vision.trainer_inputs import episode_image_inputs

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return episode_image_inputs(eyes, rollouts.episodes, ids)


def _count_loss_tokens(batch: dict[str, Any], counts: Any) -> Any:
    """The tokens that the loss is a mean over: those that the model said in these rows."""
    mask = batch["completion_mask"]
    if "tool_mask" in batch:
        mask = mask * batch["tool_mask"]
    return mask[counts.to(mask.device)].sum()


def build_trainer(
    *,
    model: Any,
    config: Any,
    tokenizer: Any,
    settings: GRPOConfig,
    pace: GRPOCallbacks,
    rollouts: GroupRollouts | None,
    eyes: VisionProcessor | None = None,
    **parts: Any,
) -> Any:
    """A trainer that is ready to go; `parts` are TRL's: tasks, rewards, and who plays."""
    import trl

    from ludus.train.grpo.prefix_sharing import PrefixSharingMixin

    kind = type("LudusGRPOTrainer", (GRPOMixin, PrefixSharingMixin, trl.GRPOTrainer), {})
    try:
        trainer: Any = kind(
            model=model, args=config, processing_class=tokenizer,
            peft_config=build_peft_config(settings.lora) if settings.lora else None,
            **parts,
        )  # fmt: skip
    except (ValueError, ImportError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"The trainer does not take these settings: {said}") from error
    add_callback(trainer, pace, _EVENTS)
    trainer.rollouts, trainer.eyes = rollouts, eyes
    # Of what keeps the model near its base, rows of equal rewards have as much to say as others.
    trainer.leaves_out = settings.equal != "keep" and not config.beta
    return trainer
