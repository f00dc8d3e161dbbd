"""TRL's `SFTConfig` or `DPOConfig` for a `TrainConfig`.

Defaults of Ludus: a cosine schedule with a short warm-up and gradients clipped at 1, because
fine-tuning is short and its first steps are the least stable; no weight decay, so that the base
model's knowledge does not fade; evaluation after each epoch if there are test rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from ludus.data.json_files import to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.policy.device import choose_device, choose_dtype
from ludus.train.config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_GROUPS,
    BaseTrainConfig,
    Lora,
    Method,
    TrainConfig,
)
from ludus.train.output.checkpoints import CHECKPOINTS_DIR
from ludus.train.overrides import FIXED_VALUES, parse_overrides

MAX_CHECKPOINTS = 2
"""Checkpoints on disk: the latest, and the one before, in case the latest is incomplete."""
TARGET_LOG_LINES = 500
"""About so many lines the log of a long run has; a short run logs every step."""
DEFAULT_DPO_BETA = 0.1
WARMUP_FRACTION = 0.03
MIN_WARMUP_RUN_STEPS = 50
"""A shorter run has no warm-up: the first step, with a learning rate of 0, would be wasted."""
LARGE_MODEL_PARAMETERS = 1_000_000_000
_DEFAULT_LEARNING_RATES: Mapping[Method, tuple[float, float, float]] = {
    "sft": (2e-4, 2e-5, 2e-4),
    "dpo": (5e-6, 1e-6, 5e-6),
    "grpo": (5e-6, 1e-6, 2e-5),
}
"""For a small model, for a large one, and for a LoRA adapter."""
_DEVICE_FIELDS = frozenset({"bf16", "fp16", "use_cpu"})
_SECRET_FIELDS = frozenset({"hub_token", "push_to_hub_token"})
_LOCAL_FIELDS = frozenset({"output_dir", "logging_dir", "run_name", "resume_from_checkpoint"})
"""Paths and names of this machine, which differ from run to run."""
_PRECISION_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def build_trl_config(method: Method, config: TrainConfig, out: Path) -> Any:
    """Build the config, except for the fields that `set_data_dependent_fields` sets."""
    import trl

    fields = {**_offline_fields(method, config, out), **device_fields(config)}
    effective = _effective_fields(config, fields, out)
    overrides = parse_overrides(method, config.overrides, effective=effective)
    config_class = trl.SFTConfig if method == "sft" else trl.DPOConfig
    return construct_trl_config(config_class, fields, overrides)


def check_overrides(method: Method, config: TrainConfig, out: Path) -> None:
    """Raise for overrides of SFT or DPO that are known to be wrong before torch is imported."""
    effective = _effective_fields(config, _offline_fields(method, config, out), out)
    parse_overrides(method, without_device_fields(config.overrides), effective=effective)


def _offline_fields(method: Method, config: TrainConfig, out: Path) -> dict[str, Any]:
    """The fields of SFT and DPO that do not depend on the device."""
    batch_size = config.batch_size or DEFAULT_BATCH_SIZE
    fields = common_trl_fields(config, out) | {
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "eval_strategy": "epoch",
    }
    if config.steps is not None:
        fields["max_steps"] = config.steps
    else:
        fields["num_train_epochs"] = config.epochs
    if method == "sft":
        fields |= {"packing": config.packing, "dataset_kwargs": {"skip_prepare_dataset": True}}
    else:
        # Precomputed, so that no reference model has to stay in memory.
        precompute = config.lora is None
        fields |= {
            "beta": config.beta or DEFAULT_DPO_BETA, "precompute_ref_log_probs": precompute,
        }  # fmt: skip
    return fields


def _effective_fields(
    config: TrainConfig, fields: Mapping[str, Any], out: Path
) -> Mapping[str, Any]:
    not_passed = {
        "eval_packing": config.packing,
        "max_length": config.max_length,
        "max_steps": config.steps or -1,
        "torch_compile": config.compile,
    }
    return effective_trl_fields(config, {**not_passed, **fields}, out)


def effective_trl_fields(
    config: BaseTrainConfig, fields: Mapping[str, Any], out: Path
) -> dict[str, Any]:
    """The values of TRL's fields in this run, as far as they are known before it begins."""
    values = {
        **FIXED_VALUES,
        **fields,
        "learning_rate": config.learning_rate,
        "output_dir": str(out),
    }
    known = {name: value for name, value in values.items() if value is not None}
    return known | {"report_to": config.tracker}


def construct_trl_config(
    config_class: Any, fields: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Any:
    """Construct one of TRL's configs; raise a `ConfigError` if it rejects the fields."""
    try:
        trl_config = config_class(**{**fields, **overrides})
    except (ValueError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"TRL does not accept these settings: {reason}") from error
    if trl_config.n_gpu > 1:
        # One process trains on one GPU: without this, transformers would use `DataParallel`.
        trl_config._n_gpu = 1
    return trl_config


def set_data_dependent_fields(
    trl_config: Any,
    config: TrainConfig,
    *,
    learning_rate: float,
    max_length: int,
    steps: int,
    has_test_rows: bool,
) -> None:
    """Set the fields that depend on the rows and the model, unless they are overridden."""
    trl_config.learning_rate = learning_rate
    if "logging_steps" not in config.overrides:
        trl_config.logging_steps = max(1, round(steps / TARGET_LOG_LINES))
    if "warmup_steps" not in config.overrides and steps < MIN_WARMUP_RUN_STEPS:
        trl_config.warmup_steps = 0.0
    if not has_test_rows and trl_config.eval_on_start:
        raise ConfigError("`overrides`: eval_on_start needs test rows, and this data set has none.")
    if not has_test_rows:
        trl_config.eval_strategy = type(trl_config.eval_strategy)("no")
    trl_config.max_length = max_length


def split_batches(trl_config: Any) -> bool:
    """Halve the rows of a forward pass, and double the passes of a step, whose rows stay the same.

    A number that cannot be halved is divided by its smallest factor. False for a single row.
    """
    rows = trl_config.per_device_train_batch_size
    factor = next((number for number in range(2, rows + 1) if rows % number == 0), None)
    if factor is None:
        return False
    trl_config.per_device_train_batch_size = rows // factor
    trl_config.per_device_eval_batch_size = -(-trl_config.per_device_eval_batch_size // factor)
    trl_config.gradient_accumulation_steps *= factor
    return True


def resolve_learning_rate(
    config: BaseTrainConfig, method: Method, parameters: int, *, groups: int = DEFAULT_GROUPS
) -> float:
    """The configured learning rate, or one that suits the method and the model.

    Small models need a high rate; models of a billion parameters and more forget under it. A LoRA
    adapter starts from zero and needs a high rate at any size. DPO separates the two sides at a
    hundredth of SFT's rates. In GRPO the noise of a step falls with the number of groups, so the
    rate of small models and adapters grows with its square root.
    """
    if config.learning_rate is not None:
        return config.learning_rate
    small, large, adapter = _DEFAULT_LEARNING_RATES[method]
    if config.lora is None and parameters >= LARGE_MODEL_PARAMETERS:
        return large
    return (small if config.lora is None else adapter) * sqrt(groups / DEFAULT_GROUPS)


def resolve_precision(config: BaseTrainConfig) -> str:
    """The precision of the computation: by default bf16 if the device has it. Weights stay fp32."""
    device = choose_device(config.device)
    if config.precision is None:
        return "fp32" if device == "mps" else _PRECISION_NAMES[choose_dtype(None, device)]
    if config.precision == "fp16" and device == "cpu":
        raise ConfigError("`precision` fp16 needs a GPU. Use fp32 or bf16 on a CPU.")
    return config.precision


def device_fields(config: BaseTrainConfig) -> dict[str, Any]:
    """The fields that depend on the device, for which torch is imported."""
    device, precision = choose_device(config.device), resolve_precision(config)
    if ":" in device:
        raise ConfigError(
            f"`device` {device}: training uses the first visible GPU. Set "
            f"CUDA_VISIBLE_DEVICES={device.partition(':')[2]} instead."
        )
    return {
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device.startswith("cuda"),
    }


def without_device_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in overrides.items() if key not in _DEVICE_FIELDS}


def common_trl_fields(config: BaseTrainConfig, out: Path) -> dict[str, Any]:
    """The fields that all methods share and that do not depend on the device."""
    return {
        "output_dir": str(out / CHECKPOINTS_DIR),
        "gradient_checkpointing": config.gradient_checkpointing,
        "lr_scheduler_type": "cosine",
        "warmup_steps": WARMUP_FRACTION,
        "max_grad_norm": 1.0,
        "seed": config.seed,
        "data_seed": config.seed,
        "save_strategy": "no",
        "save_total_limit": MAX_CHECKPOINTS,
        "logging_first_step": True,
        # A loss that is NaN or infinite must show up in the log.
        "logging_nan_inf_filter": False,
        "report_to": config.tracker,
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
    }


def trl_config_json(trl_config: Any) -> JsonObject:
    """All fields of TRL's config, except secrets and local paths."""
    fields: Mapping[str, Any] = trl_config.to_dict()
    excluded = _SECRET_FIELDS | _LOCAL_FIELDS
    return {key: to_jsonable(value) for key, value in fields.items() if key not in excluded}


def build_peft_config(lora: Lora) -> Any:
    """PEFT's config for the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.effective_alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) if lora.target_modules else "all-linear",
        task_type="CAUSAL_LM",
    )
