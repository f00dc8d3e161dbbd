"""Reading and writing `training.json`, and deciding whether two records are of the same run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.atomic_write import write_atomically
from ludus.data.config_diff import describe_differences
from ludus.data.jsonable import dump_json, to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import RECORD_FILE, read_log
from ludus.data.versions import versions
from ludus.errors import RunError
from ludus.policy import smollm2
from ludus.train.output.checkpoints import latest_checkpoint
from ludus.train.output.record_schema import (
    FinalMetrics,
    TaskExample,
    TrainingRecord,
    rename_settings,
)
from ludus.train.overrides import NON_DECISIVE_FIELDS

_MAX_DIFFERENCES_SHOWN = 8
_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
_SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
NON_DECISIVE = frozenset({"device", "report_to", "checkpoint_every", "compile", "allow_unseeded"})
"""Settings that may differ when a run is resumed: they do not affect the trained weights."""
NON_DECISIVE_IN_GRPO = NON_DECISIVE | {"batch_size"}
"""In GRPO the gradient of a step is over all its episodes, in however many batches."""


def create_record(
    out: Path, fields: Mapping[str, Any], *, resumed_from: int | None = None
) -> TrainingRecord:
    """Write `training.json`; `fields` are those of `TrainingRecord` except dates and versions.

    A resumed run keeps its date. `base` and `license` are those of the model, from its name or from
    its own record, if they are not given.
    """
    previous = read_record(out) if resumed_from is not None else None
    given = {key: value for key, value in to_jsonable(fields).items() if value is not None}
    if previous is not None:
        steps = previous_steps(previous, given["kind"], given["settings"])
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
    out: Path, metrics: FinalMetrics, example: TaskExample | None = None
) -> TrainingRecord:
    """Add the final metrics, which mark the run as finished, and a task for the card."""
    started = read_record(out)
    if started is None:
        raise RunError(f"{out} holds no training run: there is no {RECORD_FILE} in it.")
    finite = FinalMetrics.model_validate(to_jsonable(metrics.model_dump()))
    finished = started.model_copy(update={"figures": finite, "example": example})
    _write_record(out, finished)
    return finished


def read_record(out: Path) -> TrainingRecord | None:
    """The record in a folder, if there is one."""
    file = out / RECORD_FILE
    try:
        return TrainingRecord.model_validate(from_json(file.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["loc"] == ("version",):
            raise RunError(
                f"{file} has version {first['input']!r}, and this version of Ludus reads version "
                "1. Install a newer Ludus."
            ) from error
        location = ".".join(map(str, first["loc"]))
        raise RunError(f"{file} is no valid record: {location}: {first['msg']}.") from error
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}.") from error


def has_progress(out: Path) -> bool:
    """Whether a step was made since the record was written; otherwise nothing is lost with it."""
    record = read_record(out)
    if record is None:
        return False
    return record.figures is not None or latest_checkpoint(out) is not None or any(read_log(out))


def previous_steps(record: TrainingRecord, kind: str, settings: Mapping[str, Any]) -> int | None:
    """The number of steps of a GRPO run, if more are requested now."""
    if not record.kind == kind == "grpo":
        return None
    before = record.settings["steps"]
    return int(before) if before < settings["steps"] else None


def check_same_run(out: Path, fields: Mapping[str, Any]) -> None:
    """Raise if the folder holds a run with another model, other data or another config.

    A GRPO run with more steps is the same run: it is extended.
    """
    previous = read_record(out)
    if previous is None:
        return
    extends = previous_steps(previous, fields["kind"], fields["settings"]) is not None
    ignored = ("steps",) if extends else ()
    before, now = previous.model_dump(), to_jsonable(fields)
    differences = list(
        describe_differences(_decisive_fields(before, ignored), _decisive_fields(now, ignored))
    )
    if differences:
        shown = differences[:_MAX_DIFFERENCES_SHOWN]
        if len(differences) > len(shown):
            shown.append(f"and {len(differences) - len(shown)} more")
        raise RunError(
            f"{out} holds a run with other settings ({'; '.join(shown)}). Set `overwrite` to "
            "replace it, or use another `out`."
        )


def _decisive_fields(fields: Mapping[str, Any], ignored: Collection[str]) -> JsonObject:
    """The fields that decide the weights: of the data its digest, not its path."""
    data, environment = fields.get("data"), fields.get("environment")
    non_decisive = NON_DECISIVE_IN_GRPO if fields["kind"] == "grpo" else NON_DECISIVE
    settings = rename_settings(fields["settings"])
    return {
        **{key: fields.get(key) for key in ("kind", "model", "weights", "dialect")},
        "data": {"digest": data["digest"]} if data else None,
        "environment": environment and environment["spec"],
        **decisive_config(settings, ignored=non_decisive | set(ignored)),
    }


def decisive_config(
    config: Mapping[str, Any], *, ignored: Collection[str] = NON_DECISIVE
) -> JsonObject:
    """The settings that decide the weights, without those `ignored`."""
    overrides = config.get("overrides") or {}
    decisive = {key: value for key, value in config.items() if key not in ignored}
    decisive["overrides"] = {
        key: value for key, value in overrides.items() if key not in NON_DECISIVE_FIELDS
    }
    return decisive


def _write_record(out: Path, record: TrainingRecord) -> None:
    fields = record.model_dump() | {"created_at": record.created_at.isoformat()}
    write_atomically(out / RECORD_FILE, dump_json(fields, indent=2) + "\n")
