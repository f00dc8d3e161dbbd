"""TRL's GRPOTrainer, with what Ludus adds: groups that teach nothing are left out of a step.

The loss, the advantages and the optimizer are TRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ludus.errors import BadSetting
from ludus.policy.eyes.sight import Eyes
from ludus.train.grpo.pace import GrpoPace
from ludus.train.grpo.rollout import Rollouts
from ludus.train.grpo.settings import GrpoSettings
from ludus.train.trainers import Checked, adapter_of, over

_BEGIN = ("on_train_begin",)
_STEPS = ("on_step_begin", "on_step_end", "on_epoch_end", "on_log")
QUARTERS = 4
WIDTH = 16
_LEFT = ("prompt_ids", "prompt_mask")
_RIGHT = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps",
    "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio",
)  # fmt: skip


class Tried(Checked):
    """Laid over TRL's trainer."""

    rollouts: Rollouts | None = None
    eyes: Eyes | None = None
    leaves_out = False
    """Whether groups that teach nothing are left out."""

    @property
    def _total_train_tokens(self) -> int:
        return int(cast(Any, self).state.num_input_tokens_seen)

    @_total_train_tokens.setter
    def _total_train_tokens(self, tokens: int) -> None:
        """It is in the trainer's state, which a checkpoint brings back."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = cast(Any, super())._generate_and_score_completions(inputs)
        us = cast(Any, self)
        if not us.model.training or self.rollouts is None:
            return batch
        if self.eyes is not None:
            batch |= _seen(self.eyes, self.rollouts, batch)
        rows = len(self.rollouts.learned)
        kept = list(range(rows))
        if self.leaves_out and "pixel_values" not in batch:
            kept = worthwhile(self.rollouts.learned, _unit(us, rows))
            batch = narrowed(batch, kept)
            items = _items(batch)
            batch["num_items_in_batch"] = us.accelerator.gather(items).sum()
        us._metrics["train"]["trained"].append(len(kept) / rows)
        return batch


def worthwhile(learned: Sequence[bool], chunks: int) -> list[int]:
    """The rows that teach something; with as many others as it takes to share them out evenly.

    The others have no advantage, and so no gradient.
    """
    kept = [place for place, teaches in enumerate(learned) if teaches]
    others = [place for place, teaches in enumerate(learned) if not teaches]
    size = max(1, -(-len(kept) // chunks)) * chunks
    return sorted([*kept, *others[: size - len(kept)]])


def _unit(trainer: Any, rows: int) -> int:
    """So many rows, or twice as many, and so on, are trained on.

    They are shared out evenly among a step's batches; and a GPU is slow in what it has not done
    before, such as a batch of another size, so there it is one of a few sizes.
    """
    chunks = int(trainer.args.steps_per_generation)
    quarter, left = divmod(rows, QUARTERS * chunks)
    few = trainer.accelerator.device.type == "cuda" and quarter and not left
    return chunks * quarter if few else chunks


def narrowed(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
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
    left = _rounded(made["prompt_mask"])
    right = _rounded(made["completion_mask"])
    for name in _LEFT:
        made[name] = made[name][:, -left:]
    for name in _RIGHT:
        if name in made and made[name].ndim == 2 and made[name].shape[1] > 1:
            made[name] = made[name][:, :right]
    return made


def _rounded(mask: Any) -> int:
    """As wide as the longest row, or a little wider, so that there are few different widths."""
    longest = int(mask.sum(1).max())
    return min(int(mask.shape[1]), -(-longest // WIDTH) * WIDTH)


def _seen(eyes: Eyes, rollouts: Rollouts, batch: dict[str, Any]) -> dict[str, Any]:
    """The pictures of these rows."""
    import torch

    from ludus.policy.eyes.tensors import tensors

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return tensors(eyes, rollouts.played, ids)


def _items(batch: dict[str, Any]) -> Any:
    mask = batch["completion_mask"]
    return (mask * batch["tool_mask"] if "tool_mask" in batch else mask).sum()


def trainer_of(
    *,
    model: Any,
    config: Any,
    tokenizer: Any,
    settings: GrpoSettings,
    pace: GrpoPace,
    rollouts: Rollouts | None,
    eyes: Eyes | None = None,
    **parts: Any,
) -> Any:
    """A trainer that is ready to go; `parts` are TRL's: tasks, rewards, and who plays."""
    import trl
    from transformers import PrinterCallback, TrainerCallback

    kind = type("LudusGRPOTrainer", (Tried, trl.GRPOTrainer), {})
    try:
        trainer: Any = kind(
            model=model, args=config, processing_class=tokenizer,
            callbacks=[over(TrainerCallback, pace, _STEPS)],
            peft_config=adapter_of(settings.lora) if settings.lora else None,
            **parts,
        )  # fmt: skip
    except (ValueError, ImportError) as error:
        said = " ".join(str(error).split())
        raise BadSetting(f"The trainer does not take these settings: {said}") from error
    trainer.remove_callback(PrinterCallback)
    # Before any other: those that report write into the folder, which may be cleared first.
    trainer.callback_handler.callbacks.insert(0, over(TrainerCallback, pace, _BEGIN))
    trainer.pace, pace.trainer = pace, trainer
    trainer.rollouts, trainer.eyes = rollouts, eyes
    trainer.leaves_out = settings.equal != "keep"
    return trainer
