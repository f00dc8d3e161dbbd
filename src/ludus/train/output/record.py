"""`training.json`, the record of a training run: its schema, reading and writing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from ludus.data.files import write_atomically
from ludus.data.interval_estimates import mean_interval
from ludus.data.json_files import dump_json, to_jsonable
from ludus.data.paired_rewards import Rewards, differences
from ludus.data.run_folder import versions
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import RECORD_FILE
from ludus.errors import RunError
from ludus.policy import smollm2

_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
_SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)


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
    dropped: int = 0
    """Rows without loss, which were dropped."""
    truncated: int = 0
    """Rows that were truncated to `max_length`."""
    environments: dict[str, int] = {}
    """How many rows come from which environment, if rows say so."""
    task: JsonObject = {}
    """The reset arguments of the runs that the rows come from, if all have the same."""
    system_prompt: str | None = None
    """The system prompt of the rows; empty for none, the default one if it is unknown."""


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


class Comparison(_RecordModel):
    """Rewards of the saved model and of the initial one, on the same tasks.

    The tasks are fresh: they were neither trained on nor used to select the model.
    """

    tasks: int
    start: float
    """Mean reward of the model that training started with."""
    saved: float
    """Mean reward of the saved model."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the difference; None if all differences are equal, or for few tasks."""

    @classmethod
    def of(cls, start: Rewards, saved: Rewards) -> Self | None:
        """Compare the rewards; None if no task has both."""
        pairs = zip(start, saved, strict=False)
        scored = [(old, new) for old, new in pairs if old is not None and new is not None]
        if not scored:
            return None
        low, high = mean_interval(differences(start, saved)) or (None, None)
        before, after = (fmean(column) for column in zip(*scored, strict=True))
        return cls(tasks=len(scored), start=before, saved=after, low=low, high=high)

    def __str__(self) -> str:
        figures = (
            f"Reward on {self.tasks:,} fresh held-out tasks: {self.start:.3f} -> {self.saved:.3f}"
        )
        if self.low is None or self.high is None:
            equal = self.start == self.saved
            return f"{figures}; " + ("the same as the start" if equal else "no interval")
        gain, interval = self.saved - self.start, f"{self.low:+.3f} to {self.high:+.3f}"
        verdict = "no measurable difference from the start"
        if self.low > 0 or self.high < 0:
            verdict = "better than the start" if gain > 0 else "WORSE than the start"
        return f"{figures} ({gain:+.3f}; 95 % interval {interval}): {verdict}"


class FinalMetrics(_RecordModel):
    """The metrics of a finished run; None if unknown."""

    steps: int
    stopped: str | None = None
    """Why the run ended before its last step, if the same command resumes it."""
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
    """Reward of the saved model, on fresh held-out tasks."""
    kept_step: int | None = None
    """The step of the model that was saved, of a run that keeps its best one."""
    buckets: tuple[BucketRecord, ...] = ()
    """The buckets of a curriculum, from easy to hard."""


class TrainingRecord(_RecordModel):
    """The content of `training.json`."""

    version: Literal[1] = 1
    kind: Literal["sft", "dpo", "grpo"]
    created_at: AwareDatetime
    command: str | None = None
    model: str
    """As the caller gave it."""
    weights: str | None = None
    """The fingerprint of the model's weights, if known; see `ludus.policy.fingerprint`."""
    base: str | None = None
    """The model's name on the Hub, if it has one."""
    license: str | None = None
    data: DataRecord | None = None
    """The training data of SFT and DPO."""
    environment: EnvironmentRecord | None = None
    """The environments of GRPO."""
    accepts_images: bool = False
    """Whether the model takes images."""
    chat_format: ChatFormatInfo
    settings: JsonObject
    """`BaseTrainConfig.as_json()`, and the number of `processes`."""
    config: JsonObject
    """TRL's whole config: `trl_config.trl_config_json`."""
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
    comparison: Comparison | None = None
    """The saved model of GRPO compared with the initial one."""

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done; otherwise the same command resumes the run."""
        return self.metrics is not None and self.metrics.stopped is None

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


def create_record(
    out: Path, fields: Mapping[str, Any], *, resumed_from: int | None = None
) -> TrainingRecord:
    """Write `training.json`; `fields` are the fields of `TrainingRecord` except dates and versions.

    A resumed run keeps its date. `base` and `license` default to the model's, from its name or its
    own record.
    """
    previous = read_record(out) if resumed_from is not None else None
    given = {key: value for key, value in to_jsonable(fields).items() if value is not None}
    if previous is not None:
        steps = previous.steps_before_extension(given["kind"], given["settings"])
        given["extended_from"] = (*previous.extended_from, *(() if steps is None else (steps,)))
        given["resumed_from"] = (*previous.resumed_from, resumed_from)
    origin: JsonObject = {}
    model = str(fields["model"])
    if model == smollm2.NAME:
        origin = {"base": _SMOLLM2_HUB_ID, "license": "apache-2.0"}
    elif (folder := Path(model).expanduser()).exists():
        if (trained := read_record(folder)) is not None:
            origin = {"base": trained.base, "license": trained.license}
    elif _HUB_ID.fullmatch(model):
        origin = {"base": model}
    record = TrainingRecord(
        created_at=previous.created_at if previous else datetime.now(UTC),
        versions=versions(*_PACKAGES),
        **{**origin, **given},
    )
    _write_record(out, record)
    return record


def finish_record(
    out: Path, metrics: FinalMetrics | None, comparison: Comparison | None = None
) -> TrainingRecord:
    """Add the results; final metrics mark the run as finished."""
    started = read_record(out)
    if started is None:
        raise RunError(f"{out} holds no training run: there is no {RECORD_FILE} in it.")
    finite = metrics and FinalMetrics.model_validate(to_jsonable(metrics.model_dump()))
    finished = started.model_copy(update={"metrics": finite, "comparison": comparison})
    _write_record(out, finished)
    return finished


def read_record(out: Path) -> TrainingRecord | None:
    """The record in a folder, if there is one."""
    file = out / RECORD_FILE
    try:
        return TrainingRecord.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise RunError(f"{file} is no valid record: {location}: {first['msg']}.") from error


def _write_record(out: Path, record: TrainingRecord) -> None:
    fields = record.model_dump() | {"created_at": record.created_at.isoformat()}
    write_atomically(out / RECORD_FILE, dump_json(fields, indent=2) + "\n")
