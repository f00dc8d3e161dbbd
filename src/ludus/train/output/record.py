"""What a training run leaves to read: `training.json`, and `log.jsonl` line by line.

    out/
      training.json    model, data, settings, versions, devices; at the end the figures
      log.jsonl        one line a logged step: step, loss, learning_rate, tokens, seconds, ...

Files only. What the settings mean, and when a step is logged, is the trainers' business; the
picture is `ludus.train.output.loss_plot`'s, the README `ludus.train.output.model_card`'s.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.atomic_write import write_atomically
from ludus.data.config_diff import describe_differences, dump_json
from ludus.data.jsonable import to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import RECORD_FILE, read_log
from ludus.data.versions import versions
from ludus.errors import RunError
from ludus.policy import smollm2
from ludus.train.output.checkpoints import latest_checkpoint
from ludus.train.output.record_schema import FinalMetrics, TaskExample, TrainingRecord
from ludus.train.overrides import NON_DECISIVE_FIELDS

_MAX_DIFFERENCES_SHOWN = 8
_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
_SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
NON_DECISIVE = frozenset({"device", "report_to", "checkpoint_every", "compile", "allow_unseeded"})
"""Settings that may differ when a run goes on: they decide where and how fast, not what."""
NON_DECISIVE_IN_GRPO = NON_DECISIVE | {"batch_size"}
"""There a step learns from all its episodes, in however many batches."""


def create_record(
    out: Path, fields: Mapping[str, Any], *, resumed_from: int | None = None
) -> TrainingRecord:
    """Write `training.json`; `about` has the fields of `Training` but dates and versions.

    A run that goes on keeps its date, and remembers where. `base` and `license` are found out
    where they are not given.
    """
    there = read_record(out) if resumed_from is not None else None
    resumes = (*there.resumed_from, resumed_from) if there and resumed_from is not None else ()
    given = {key: value for key, value in to_jsonable(fields).items() if value is not None}
    if there is not None:
        fewer = previous_steps(there, given["kind"], given["settings"])
        given["extended_from"] = there.extended_from + (() if fewer is None else (fewer,))
    training = TrainingRecord(
        created_at=there.created_at if there else datetime.now(UTC),
        versions=versions(*_PACKAGES),
        resumed_from=resumes,
        **{**_model_origin(str(fields["model"])), **given},
    )
    _write_record(out, training)
    return training


def _model_origin(model: str) -> JsonObject:
    """The model's name on the Hub and its license, as far as the name or its own record tells."""
    if model == smollm2.NAME:
        return {"base": _SMOLLM2_HUB_ID, "license": "apache-2.0"}
    if Path(model).expanduser().exists():
        there = read_record(Path(model).expanduser())
        return {"base": there.base, "license": there.license} if there else {}
    return {"base": model} if _HUB_ID.fullmatch(model) else {}


def finish_record(
    out: Path, metrics: FinalMetrics, example: TaskExample | None = None
) -> TrainingRecord:
    """Add the figures, and a task for the card; now the run is whole."""
    there = read_record(out)
    if there is None:
        raise RunError(f"{out} holds no training: there is no {RECORD_FILE} in it.")
    finite = FinalMetrics.model_validate(to_jsonable(metrics.model_dump()))
    done = there.model_copy(update={"figures": finite, "example": example})
    _write_record(out, done)
    return done


def read_record(out: Path) -> TrainingRecord | None:
    """What `training.json` says; None where there is none."""
    file = out / RECORD_FILE
    try:
        return TrainingRecord.model_validate(from_json(file.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        raise _invalid_record_error(file, error) from error
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}.") from error


def _invalid_record_error(file: Path, error: ValidationError) -> RunError:
    first = error.errors(include_url=False)[0]
    if first["loc"] == ("version",):
        return RunError(
            f"{file} is of version {first['input']!r}, and this Ludus reads version 1. "
            "Install a newer Ludus."
        )
    where = ".".join(map(str, first["loc"]))
    return RunError(f"{file} is not what a training has: {where}: {first['msg']}.")


def has_progress(out: Path) -> bool:
    """Whether a step was made since the record was written; else nothing is lost with it."""
    there = read_record(out)
    if there is None:
        return False
    return there.figures is not None or latest_checkpoint(out) is not None or any(read_log(out))


def previous_steps(record: TrainingRecord, kind: str, settings: Mapping[str, Any]) -> int | None:
    """The steps that a GRPO run was asked for before, where it is now asked for more; else None."""
    if not record.kind == kind == "grpo":
        return None
    before = record.settings["steps"]
    return int(before) if before < settings["steps"] else None


def check_same_run(out: Path, fields: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with another model, other rows or settings.

    More steps than a GRPO run had are no other settings: it is extended.
    """
    there = read_record(out)
    if there is None:
        return
    extends = previous_steps(there, fields["kind"], fields["settings"]) is not None
    ignored = ("steps",) if extends else ()
    lines = list(
        describe_differences(
            _decisive_fields(there.model_dump(), ignored),
            _decisive_fields(to_jsonable(fields), ignored),
        )
    )
    if lines:
        more = (
            [f"and {len(lines) - _MAX_DIFFERENCES_SHOWN} more"]
            if len(lines) > _MAX_DIFFERENCES_SHOWN
            else []
        )
        raise RunError(
            f"{out} holds a training with other settings ({'; '.join([*lines[:_MAX_DIFFERENCES_SHOWN], *more])}). "
            "Use --overwrite to begin anew, or another --output-dir."
        )


def _decisive_fields(about: Mapping[str, Any], ignored: Collection[str]) -> JsonObject:
    """What decides the weights. The data's path does not: its digest does."""
    rows, played = about.get("data"), about.get("environment")
    data = {"digest": rows["digest"]} if rows else None
    free = NON_DECISIVE_IN_GRPO if about["kind"] == "grpo" else NON_DECISIVE
    kept = {key: about.get(key) for key in ("kind", "model", "weights", "dialect")}
    settings = decisive_config(about["settings"], ignored=free | set(ignored))
    return {**kept, "data": data, "environment": played and played["spec"], **settings}


def decisive_config(
    config: Mapping[str, Any], *, ignored: Collection[str] = NON_DECISIVE
) -> JsonObject:
    """Of `Settings.as_json()`, what decides the weights; `free` are those settings that do not."""
    overrides = config.get("overrides") or {}
    kept = {key: value for key, value in overrides.items() if key not in NON_DECISIVE_FIELDS}
    return {key: value for key, value in config.items() if key not in ignored} | {"overrides": kept}


def _write_record(out: Path, training: TrainingRecord) -> None:
    fields = training.model_dump() | {"created_at": training.created_at.isoformat()}
    write_atomically(out / RECORD_FILE, dump_json(fields, indent=2) + "\n")
