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
from ludus.train.config import DEFAULT_BATCH_SIZE, BaseTrainConfig, Method, TrainConfig
from ludus.train.output.checkpoints import CHECKPOINTS_DIR
from ludus.train.overrides import FIXED_VALUES, parse_overrides

MAX_CHECKPOINTS = 2
"""Checkpoints on the disk: the newest, and one in case that the newest is being written."""
TARGET_LOG_LINES = 500
"""About so many lines has the log of a long run; a short one has one for each step."""
DEFAULT_DPO_BETA = 0.1
WARMUP_FRACTION = 0.03
MIN_WARMUP_RUN_STEPS = 50
"""A run of fewer steps has no warm-up: its first step has a rate of zero, and would be wasted."""
_PRECISION_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def config_class(method: Method) -> Any:
    import trl

    return trl.SFTConfig if method == "sft" else trl.DPOConfig


def build_trl_config(method: Method, config: TrainConfig, out: Path) -> Any:
    """The config, but for what only the rows and the weights decide."""
    fields = common_fields(config, out) | _schedule_fields(config)
    fields |= _sft_fields(config) if method == "sft" else _dpo_fields(config)
    kind = config_class(method)
    own = {
        "eval_packing": config.packing,
        "max_length": config.max_length,
        "max_steps": config.steps or -1,
        "torch_compile": config.compile,
    }
    in_force = effective_values(config, {**own, **fields}, out)
    return construct_config(
        kind, fields, parse_overrides(kind, config.overrides, effective=in_force)
    )


def effective_values(
    config: BaseTrainConfig, fields: Mapping[str, Any], out: Path
) -> dict[str, Any]:
    """Values by TRL's names that hold in this run, as far as they are known before it begins."""
    decided = {
        **FIXED_VALUES,
        **fields,
        "learning_rate": config.learning_rate,
        "output_dir": str(out),
    }
    known = {name: value for name, value in decided.items() if value is not None}
    return known | {"report_to": config.report_to}


def construct_config(kind: Any, fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
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


def set_data_dependent_fields(
    trl_config: Any,
    config: TrainConfig,
    *,
    learning_rate: float,
    max_length: int,
    steps: int,
    has_test_rows: bool,
) -> None:
    """Fill in what the rows and the weights decided, unless it was set by name."""
    given = config.overrides
    trl_config.learning_rate = learning_rate
    if "logging_steps" not in given:
        trl_config.logging_steps = max(1, round(steps / TARGET_LOG_LINES))
    if "warmup_steps" not in given and steps < MIN_WARMUP_RUN_STEPS:
        trl_config.warmup_steps = 0.0
    if not has_test_rows and trl_config.eval_on_start:
        raise ConfigError("--set eval_on_start wants test rows, and this data set has none.")
    if not has_test_rows:
        trl_config.eval_strategy = type(trl_config.eval_strategy)("no")
    trl_config.max_length = max_length


def resolve_precision(config: BaseTrainConfig) -> str:
    """What the sums are made in: bf16 where the device is good at it; weights stay float32."""
    device = choose_device(config.device)
    if config.precision is None:
        return "fp32" if device == "mps" else _PRECISION_NAMES[choose_dtype(None, device)]
    if config.precision == "fp16" and device == "cpu":
        raise ConfigError("--precision fp16 is for GPUs. Use fp32 on a CPU, or bf16.")
    return config.precision


def common_fields(config: BaseTrainConfig, out: Path) -> dict[str, Any]:
    """The fields that mean the same to every method."""
    device, precision = choose_device(config.device), resolve_precision(config)
    if ":" in device:
        raise ConfigError(
            f"--device {device}: training takes the first GPU that it sees. Show it one with "
            f"CUDA_VISIBLE_DEVICES={device.partition(':')[2]}."
        )
    return {
        "output_dir": str(out / CHECKPOINTS_DIR),
        "gradient_checkpointing": config.gradient_checkpointing,
        "lr_scheduler_type": "cosine",
        "warmup_steps": WARMUP_FRACTION,
        "max_grad_norm": 1.0,
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device.startswith("cuda"),
        "save_strategy": "no",
        "save_total_limit": MAX_CHECKPOINTS,
        "logging_first_step": True,
        # A loss that is no number is the news of the day, and not to be smoothed over.
        "logging_nan_inf_filter": False,
        "report_to": config.report_to or "none",
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
    }


def _schedule_fields(settings: TrainConfig) -> dict[str, Any]:
    batch = settings.batch_size or DEFAULT_BATCH_SIZE
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


def _sft_fields(settings: TrainConfig) -> dict[str, Any]:
    return {"packing": settings.packing, "dataset_kwargs": {"skip_prepare_dataset": True}}


def _dpo_fields(settings: TrainConfig) -> dict[str, Any]:
    """What the base says of every row is computed beforehand: no second model in memory."""
    return {
        "beta": settings.beta or DEFAULT_DPO_BETA,
        "precompute_ref_log_probs": settings.lora is None,
    }
