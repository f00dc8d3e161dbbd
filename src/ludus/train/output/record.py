"""Reading and writing `training.json`, the record of a training run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.files import write_atomically
from ludus.data.json_files import dump_json, to_jsonable
from ludus.data.run_folder import versions
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import RECORD_FILE
from ludus.errors import RunError
from ludus.policy import smollm2
from ludus.train.output.record_schema import (
    FinalMetrics,
    TaskExample,
    TrainingRecord,
)

_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
_SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)


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
    out: Path, metrics: FinalMetrics, example: TaskExample | None = None
) -> TrainingRecord:
    """Add the final metrics, which mark the run as finished, and a task for the card."""
    started = read_record(out)
    if started is None:
        raise RunError(f"{out} holds no training run: there is no {RECORD_FILE} in it.")
    finite = FinalMetrics.model_validate(to_jsonable(metrics.model_dump()))
    finished = started.model_copy(update={"metrics": finite, "example": example})
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


def _write_record(out: Path, record: TrainingRecord) -> None:
    fields = record.model_dump() | {"created_at": record.created_at.isoformat()}
    write_atomically(out / RECORD_FILE, dump_json(fields, indent=2) + "\n")
