"""What `training.json` says of a run: a versioned form, without the files."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ludus.data.tool_schema import JsonObject


class _RecordModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataRecord(_RecordModel):
    """What was trained on."""

    path: str
    """As it was typed."""
    rows: int
    digest: str
    """`digest_of` the file or files that hold the rows."""
    test_rows: int | None = None
    """Rows of the test split, on which the eval loss is measured."""
    left_out: int = 0
    """Rows that were not trained on, because nothing would have been learned from them."""
    cut: int = 0
    """Rows that were trained on without their end, because they are longer than `max_length`."""
    environments: dict[str, int] = {}
    """How many rows came from which environment, where rows say so."""
    task: JsonObject = {}
    """Arguments of reset in the runs that the rows were curated from, where all have the same."""


class TaskExample(_RecordModel):
    """One of the tasks that were trained on, as the model was asked."""

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()


class EnvironmentRecord(_RecordModel):
    """What was tried, where a model learns by trial."""

    spec: str
    """As it was typed: one environment, or a mix with its shares."""
    names: tuple[str, ...]
    """What episodes call the environments."""


class ChatFormatInfo(_RecordModel):
    """The dialect: under which chat template it was trained, and whose that is."""

    name: str
    origin: str
    chat_template_kwargs: JsonObject = Field(default_factory=dict)
    """The template's arguments, as the model is saved with them."""


class FinalMetrics(_RecordModel):
    """What came of it. None: not known."""

    steps: int
    epochs: float | None = None
    tokens: int | None = None
    """Tokens that went through the model, in all epochs."""
    seconds: float | None = None
    tokens_per_second: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    eval_loss: float | None = None
    peak_memory: int | None = None
    """Bytes of the device's memory."""
    first_reward: float | None = None
    last_reward: float | None = None
    eval_reward: float | None = None
    """On held-out tasks, the last that was measured."""


class TrainingRecord(_RecordModel):
    """What `training.json` says."""

    version: Literal[1] = 1
    kind: Literal["sft", "dpo", "grpo"]
    created_at: AwareDatetime
    command: str | None = None
    """As it was typed."""
    model: str
    """As it was typed."""
    weights: str | None = None
    """Which weights it had: `ludus.policy.fingerprint`; None where that is not known."""
    base: str | None = None
    """The model's name on the Hub, where it has one."""
    license: str | None = None
    data: DataRecord | None = None
    """The rows of SFT and DPO."""
    environment: EnvironmentRecord | None = None
    """The tasks of GRPO."""
    example: TaskExample | None = None
    """Of the tasks; known at the end."""
    sees: bool = False
    """Whether the model takes images."""
    dialect: ChatFormatInfo
    settings: JsonObject
    """`Settings.as_json()`, with `overrides` as given by --set."""
    config: JsonObject
    """TRL's whole config, with what was chosen where nothing was said: `facts.config_json`."""
    seeds: dict[str, int]
    versions: dict[str, str]
    devices: tuple[str, ...]
    """One for each process; `facts.devices`."""
    resumed_from: tuple[int, ...] = ()
    """The steps after which it went on, each time that it was stopped."""
    extended_from: tuple[int, ...] = ()
    """The steps that were asked for before more were. Up to where it was extended, the learning
    rate followed the shorter schedule."""
    figures: FinalMetrics | None = None
    """None: it is under way, or was stopped."""
