"""TRL's config of a run, and `overrides`: the fields of it that the user sets.

Defaults of Ludus: a cosine schedule with a short warm-up and gradients clipped at 1, because
fine-tuning is short and its first steps are the least stable; no weight decay, so that the base
model's knowledge does not fade; evaluation after each epoch if there are test rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ludus.data.json_files import to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, closest_match, did_you_mean
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.hf_loading import require_transformers
from ludus.train.config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_GROUPS,
    BaseTrainConfig,
    Lora,
    Method,
    TrainConfig,
)
from ludus.train.output.checkpoints import CHECKPOINTS_DIR, MAX_CHECKPOINTS

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import TrainingArguments

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
"""Rates of a small model, a large one, and a LoRA adapter."""
_REASONS = {
    "use `out`": ("output_dir",),
    "use `epochs`": ("num_train_epochs",),
    "use `steps`": ("max_steps",),
    "use `batch_size`": ("per_device_train_batch_size",),
    "use `precision`": ("bf16", "fp16"),
    "use `device`": ("use_cpu",),
    "use `compile`": ("torch_compile",),
    "use `seed`": ("data_seed",),
    "the loss is always on the assistant's tokens alone": (
        "assistant_only_loss", "completion_only_loss",
    ),
    "rows are tokenized by Ludus, with the chat template that inference uses": (
        "chat_template_path", "dataset_text_field", "dataset_kwargs", "dataset_num_proc",
        "eos_token", "pad_token", "truncation_mode", "shuffle_dataset", "remove_unused_columns",
    ),
    "checkpoints are saved by time; use `checkpoint_every`": (
        "save_strategy", "save_steps", "save_total_limit", "save_only_model",
        "resume_from_checkpoint", "load_best_model_at_end", "ignore_data_skip",
        "restore_callback_states_from_checkpoint",
    ),
    "the layout of batches follows from the device": (
        "packing", "eval_packing", "padding_free", "pad_to_multiple_of", "packing_strategy",
    ),
    "progress is shown by Ludus": ("disable_tqdm", "log_level", "log_level_replica"),
    "the model is loaded by Ludus": ("model_init_kwargs", "trust_remote_code"),
}  # fmt: skip
_SAME_NAME = (
    "report_to", "max_length", "gradient_accumulation_steps", "learning_rate", "beta",
    "gradient_checkpointing", "seed", "push_to_hub",
)  # fmt: skip
MANAGED_FIELDS: Mapping[str, str] = {
    **{name: f"use `{name}`" for name in _SAME_NAME},
    **{name: reason for reason, names in _REASONS.items() for name in names},
}
"""Fields that `overrides` does not take, because Ludus sets them or relies on their value."""
NON_DECISIVE_FIELDS = frozenset({
    "logging_steps", "logging_strategy", "logging_first_step", "log_on_each_node",
    "log_completions", "num_completions_to_print", "log_completions_hub_repo", "log_multimodal",
    "log_unique_prompts", "run_name", "project", "trackio_space_id", "trackio_bucket_id",
    "trackio_static_space_id", "include_num_input_tokens_seen", "skip_memory_metrics", "debug",
    "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory",
    "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "torch_empty_cache_steps",
    "ddp_backend", "ddp_bucket_cap_mb", "ddp_timeout", "eval_accumulation_steps",
})  # fmt: skip
"""Fields that affect logging or speed, and never the trained weights."""
_UNRECORDED_FIELDS = frozenset({
    "hub_token", "push_to_hub_token", "output_dir", "logging_dir", "run_name",
    "resume_from_checkpoint",
})  # fmt: skip
"""Secrets, and paths and names that differ from run to run."""
_PRECISION_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def build_trl_config(method: Method, config: TrainConfig, out: Path) -> TrainingArguments:
    """TRL's config of SFT or DPO, without what `set_data_dependent_fields` sets."""
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
        fields["dataset_kwargs"] = {"skip_prepare_dataset": True}
    else:
        fields["beta"] = config.beta or DEFAULT_DPO_BETA
        # Precomputed, so that no reference model has to stay in memory.
        fields["precompute_ref_log_probs"] = config.lora is None
    return construct_trl_config(method, fields, config.overrides)


def common_trl_fields(config: BaseTrainConfig, out: Path) -> dict[str, Any]:
    """The fields of TRL's config that all methods share."""
    device, precision = choose_device(config.device), resolve_precision(config)
    if ":" in device:
        raise ConfigError(
            f"`device` {device}: training uses the first visible GPU. Set "
            f"CUDA_VISIBLE_DEVICES={device.partition(':')[2]} instead."
        )
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
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device.startswith("cuda"),
    }


def construct_trl_config(
    method: Method,
    fields: Mapping[str, Any],
    overrides: Mapping[str, Any],
    managed: Mapping[str, str] = MANAGED_FIELDS,
) -> TrainingArguments:
    """Build TRL's config from these fields, some of which the user may override."""
    import trl

    given = parse_overrides(method, overrides, managed)
    config_class = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig, "grpo": trl.GRPOConfig}[method]
    try:
        trl_config: TrainingArguments = config_class(**{**fields, **given})
    except (ValueError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"TRL does not accept these settings: {reason}") from error
    if trl_config.n_gpu > 1:
        # One process trains on one GPU: without this, transformers would use `DataParallel`.
        trl_config._n_gpu = 1
    return trl_config


def parse_overrides(
    method: Method, overrides: Mapping[str, Any], managed: Mapping[str, str] = MANAGED_FIELDS
) -> dict[str, Any]:
    """The overrides, with texts parsed by the types of TRL's config; imports TRL if there are any.

    Raises for names that the config does not have, and for managed ones.
    """
    if not overrides:
        return {}
    require_transformers("Training", "trl")
    import trl

    config_class = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig, "grpo": trl.GRPOConfig}[method]
    names, parsed = config_class.__dataclass_fields__.keys(), dict[str, Any]()
    types = get_type_hints(config_class)
    for name, value in overrides.items():
        if name not in names:
            close = closest_match(name, names) or ""
            if close in managed:
                hint = f"Ludus manages {close}: {managed[close]}."
            else:
                hint = did_you_mean(close, names, "See TRL's documentation of the config.")
            raise ConfigError(f"`overrides`: TRL's config has no field {name}. {hint}")
        if name in managed or name.startswith(("hub_", "push_to_hub")):
            reason = managed.get(name, managed["push_to_hub"])
            raise ConfigError(f"`overrides`: {name} is managed by Ludus: {reason}.")
        if value == "none" and NoneType in get_args(types[name]):
            value = None
        elif isinstance(value, str) and value[:1] in ("{", "["):
            value = json.loads(value)
        adapter: TypeAdapter[Any] = TypeAdapter(
            types[name], config=ConfigDict(coerce_numbers_to_str=True, arbitrary_types_allowed=True)
        )
        try:
            parsed[name] = adapter.validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"`overrides`: {name} cannot be {value!r}. {reason}.") from error
    return parsed


def set_data_dependent_fields(
    trl_config: TrainingArguments,
    config: TrainConfig,
    *,
    learning_rate: float,
    max_length: int,
    steps: int,
    has_test_rows: bool,
) -> None:
    """Set TRL's fields that depend on the rows and the model, unless they are overridden."""
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


def split_batches(trl_config: TrainingArguments) -> bool:
    """Halve the rows of a forward pass, and double the passes of a step.

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
    """The learning rate: as configured, or one that suits the method and the model.

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
    """The precision: by default bf16 if the device has it. Weights stay fp32."""
    device = choose_device(config.device)
    if config.precision is None:
        return "fp32" if device == "mps" else _PRECISION_NAMES[choose_dtype(None, device)]
    if config.precision == "fp16" and device == "cpu":
        raise ConfigError("`precision` fp16 needs a GPU. Use fp32 or bf16 on a CPU.")
    return config.precision


def trl_config_json(trl_config: TrainingArguments) -> JsonObject:
    """All fields of TRL's config, except secrets and local paths."""
    fields: JsonObject = trl_config.to_dict()
    return {
        name: to_jsonable(value) for name, value in fields.items() if name not in _UNRECORDED_FIELDS
    }


def build_peft_config(lora: Lora) -> LoraConfig:
    """Build PEFT's config for the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.effective_alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) if lora.target_modules else "all-linear",
        task_type="CAUSAL_LM",
    )
