"""TRL's config for a run: what the settings mean in its fields.

Where the settings say nothing: a cosine schedule with a short warm-up and gradients clipped at 1,
because a fine-tuning is short and its first steps are its wildest; no weight decay, because what
the base knows is not to fade. Evaluated at the end of each epoch where there are test rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.policy.device import choose_device, choose_dtype
from ludus.train.checkpoints import FOLDER
from ludus.train.overrides import FIXED, checked
from ludus.train.settings import BATCH, Method, Settings, Shared

KEPT = 2
"""Checkpoints on the disk: the newest, and one in case that the newest is being written."""
LINES = 500
"""About so many lines has the log of a long run; a short one has one for each step."""
BETA = 0.1
WARM_UP = 0.03
SHORT = 50
"""A run of fewer steps has no warm-up: its first step has a rate of zero, and would be wasted."""
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def config_class(method: Method) -> Any:
    import trl

    return trl.SFTConfig if method == "sft" else trl.DPOConfig


def made(method: Method, config: Settings, out: Path) -> Any:
    """The config, but for what only the rows and the weights decide."""
    fields = shared(config, out) | _rows(config)
    fields |= _sft(config) if method == "sft" else _dpo(config)
    kind = config_class(method)
    own = {
        "eval_packing": config.packing,
        "max_length": config.max_length,
        "max_steps": config.steps or -1,
        "torch_compile": config.compile,
    }
    in_force = values_in_force(config, {**own, **fields}, out)
    return config_of(kind, fields, checked(kind, config.overrides, in_force=in_force))


def values_in_force(config: Shared, fields: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Values by TRL's names that hold in this run, as far as they are known before it begins."""
    decided = {**FIXED, **fields, "learning_rate": config.learning_rate, "output_dir": str(out)}
    known = {name: value for name, value in decided.items() if value is not None}
    return known | {"report_to": config.report_to}


def config_of(kind: Any, fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """A config with these fields; what TRL thinks of them is told in a line."""
    try:
        config = kind(**{**fields, **overrides})
    except (ValueError, TypeError, ImportError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"TRL does not take these settings: {said}") from error
    if config.n_gpu > 1:
        # One process trains on one GPU; a launcher starts one for each.
        config._n_gpu = 1
    return config


def complete(
    config: Any,
    config: Settings,
    *,
    learning_rate: float,
    max_length: int,
    steps: int,
    test: bool,
) -> None:
    """Fill in what the rows and the weights decided, unless it was set by name."""
    given = config.overrides
    config.learning_rate = learning_rate
    if "logging_steps" not in given:
        config.logging_steps = max(1, round(steps / LINES))
    if "warmup_steps" not in given and steps < SHORT:
        config.warmup_steps = 0.0
    if not test and config.eval_on_start:
        raise ConfigError("--set eval_on_start wants test rows, and this data set has none.")
    if not test:
        config.eval_strategy = type(config.eval_strategy)("no")
    config.max_length = max_length


def precision_of(config: Shared) -> str:
    """What the sums are made in: bf16 where the device is good at it; weights stay float32."""
    device = choose_device(config.device)
    if config.precision is None:
        return "fp32" if device == "mps" else _PRECISIONS[choose_dtype(None, device)]
    if config.precision == "fp16" and device == "cpu":
        raise ConfigError("--precision fp16 is for GPUs. Use fp32 on a CPU, or bf16.")
    return config.precision


def shared(config: Shared, out: Path) -> dict[str, Any]:
    """The fields that mean the same to every method."""
    device, precision = choose_device(config.device), precision_of(config)
    if ":" in device:
        raise ConfigError(
            f"--device {device}: training takes the first GPU that it sees. Show it one with "
            f"CUDA_VISIBLE_DEVICES={device.partition(':')[2]}."
        )
    return {
        "output_dir": str(out / FOLDER),
        "gradient_checkpointing": config.gradient_checkpointing,
        "lr_scheduler_type": "cosine",
        "warmup_steps": WARM_UP,
        "max_grad_norm": 1.0,
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device.startswith("cuda"),
        "save_strategy": "no",
        "save_total_limit": KEPT,
        "logging_first_step": True,
        # A loss that is no number is the news of the day, and not to be smoothed over.
        "logging_nan_inf_filter": False,
        "report_to": config.report_to or "none",
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
    }


def _rows(settings: Settings) -> dict[str, Any]:
    batch = settings.batch_size or BATCH
    length: dict[str, Any] = {"num_train_epochs": settings.epochs}
    if settings.steps is not None:
        length = {"max_steps": settings.steps}
    return {
        **length,
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": settings.accumulate,
        "eval_strategy": "epoch",
    }


def _sft(settings: Settings) -> dict[str, Any]:
    return {"packing": settings.packing, "dataset_kwargs": {"skip_prepare_dataset": True}}


def _dpo(settings: Settings) -> dict[str, Any]:
    """What the base says of every row is computed beforehand: no second model in memory."""
    return {
        "beta": settings.beta or BETA,
        "precompute_ref_log_probs": settings.lora is None,
    }
