"""The schema of `training.json`, the record of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from ludus.data.tool_schema import JsonObject

RENAMED_SETTINGS = {
    "accumulate": "gradient_accumulation_steps",
    "drop": "drop_untrainable",
    "equal": "zero_variance_groups",
    "merge": "merge_adapter",
    "resamples": "max_resamples",
    "rewards": "reward_funcs",
    "targets": "target_modules",
    "vllm": "vllm_mode",
}
"""Names of settings, and of the fields of `lora`, in records of earlier versions."""


def rename_settings(settings: Mapping[str, Any]) -> JsonObject:
    """The settings of a record under their current names."""
    renamed = {RENAMED_SETTINGS.get(name, name): value for name, value in settings.items()}
    if isinstance(lora := renamed.get("lora"), dict):
        renamed["lora"] = {RENAMED_SETTINGS.get(name, name): value for name, value in lora.items()}
    return renamed


def restore_setting_names(settings: JsonObject) -> JsonObject:
    """The inverse of `rename_settings`: settings under their names in the first records.

    Run ids are computed from these, so that they do not change.
    """
    old_names = {new: old for old, new in RENAMED_SETTINGS.items()}
    return {
        old_names.get(name, name): restore_setting_names(value)
        if name == "lora" and value
        else value
        for name, value in settings.items()
    }


class _RecordModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataRecord(_RecordModel):
    """The training data of SFT and DPO."""

    path: str
    """As the caller gave it."""
    rows: int
    digest: str
    """`checksum.file_digest` of the files of the training split."""
    test_rows: int | None = None
    """Rows of the test split, on which the eval loss is measured."""
    left_out: int = 0
    """Rows without loss, which were dropped."""
    cut: int = 0
    """Rows that were truncated to `max_length`."""
    environments: dict[str, int] = {}
    """How many rows come from which environment, where rows say so."""
    task: JsonObject = {}
    """The reset arguments of the runs that the rows come from, if all have the same."""
    system_prompt: str | None = None
    """That of the rows; empty for none, null where it is not known."""


class TaskExample(_RecordModel):
    """A task that the model was trained on, as its prompt."""

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()


class EnvironmentRecord(_RecordModel):
    """The environments of GRPO."""

    spec: str
    """As the caller gave it: an environment, or a mixture with weights."""
    names: tuple[str, ...]
    """The names of the environments in episodes."""


class ChatFormatInfo(_RecordModel):
    """The chat template that the model was trained with."""

    name: str
    origin: str
    chat_template_kwargs: JsonObject = Field(default_factory=dict)
    """The arguments of the template, which the model is saved with."""


class BucketRecord(_RecordModel):
    """A bucket of GRPO's curriculum."""

    label: str
    attempts: int
    share: float
    """Share of all groups that were drawn from it."""
    success: float | None
    """Success rate at the end; None: never attempted."""


class FinalMetrics(_RecordModel):
    """The metrics of a finished run; None if unknown."""

    steps: int
    epochs: float | None = None
    tokens: int | None = None
    """Tokens that were trained on, over all epochs."""
    seconds: float | None = None
    tokens_per_second: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    eval_loss: float | None = None
    peak_memory: int | None = None
    """GPU memory in bytes."""
    first_reward: float | None = None
    last_reward: float | None = None
    eval_reward: float | None = None
    """On held-out tasks, of the model that was saved."""
    kept_step: int | None = None
    """The step of the model that was saved, of a run that keeps its best one."""
    buckets: tuple[BucketRecord, ...] = ()
    """Of a curriculum, from easy to hard."""


class TrainingRecord(_RecordModel):
    """The content of `training.json`."""

    version: Literal[1] = 1
    kind: Literal["sft", "dpo", "grpo"]
    created_at: AwareDatetime
    command: str | None = None
    model: str
    """As the caller gave it."""
    weights: str | None = None
    """The fingerprint of the model's weights, if known; see `ludus.policy.model_ref`."""
    base: str | None = None
    """The model's name on the Hub, if it has one."""
    license: str | None = None
    data: DataRecord | None = None
    """For SFT and DPO."""
    environment: EnvironmentRecord | None = None
    """For GRPO."""
    example: TaskExample | None = None
    """Set when the run is finished."""
    accepts_images: bool = False
    """Whether the model takes images."""
    dialect: ChatFormatInfo
    settings: JsonObject
    """`BaseTrainConfig.as_json()`, and the number of `processes`."""
    config: JsonObject
    """TRL's whole config: `trl_config.trl_config_json`."""
    seeds: dict[str, int]
    versions: dict[str, str]
    devices: tuple[str, ...]
    """One for each process: `device.device_names`."""
    resumed_from: tuple[int, ...] = ()
    """The steps after which the run was resumed."""
    extended_from: tuple[int, ...] = ()
    """The number of steps before each extension. Up to where the run was extended, the learning
    rate followed the shorter schedule."""
    metrics: FinalMetrics | None = None
    """Set when the run is finished."""

    @field_validator("settings", mode="before")
    @classmethod
    def _rename_settings(cls, settings: Any) -> Any:
        return rename_settings(settings) if isinstance(settings, dict) else settings

    @property
    def is_adapter_only(self) -> bool:
        """Whether the folder holds an adapter without its base model."""
        lora = self.settings.get("lora")
        return lora is not None and not lora.get("merge_adapter", True)

    def steps_before_extension(self, kind: str, settings: Mapping[str, Any]) -> int | None:
        """The number of steps of a GRPO run that is extended: more are requested now."""
        if not self.kind == kind == "grpo":
            return None
        before = self.settings["steps"]
        return int(before) if before < settings["steps"] else None
