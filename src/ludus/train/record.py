"""What a training run leaves to read: `training.json`, and `log.jsonl` line by line.

    out/
      training.json    model, data, settings, versions, devices; at the end the figures
      log.jsonl        one line a logged step: step, loss, learning_rate, tokens, seconds, ...

Files only. What the settings mean, and when a step is logged, is the trainers' business; the
picture is `ludus.train.curve`'s, the README `ludus.train.card`'s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.settings import describe_differences, dump_json
from ludus.data.tools import JsonObject
from ludus.data.versions import versions
from ludus.errors import RunError
from ludus.policy import smollm2
from ludus.train.checkpoints import newest
from ludus.train.facts import plain
from ludus.train.overrides import NEUTRAL
from ludus.train.training import Example, Figures, Training

RECORD = "training.json"
LOG = "log.jsonl"
_SHOWN = 8
_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
_BLOCK = 1 << 20
_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
FREE = frozenset({"device", "report_to", "checkpoint_every", "compile", "allow_unseeded"})
"""Settings that may differ when a run goes on: they decide where and how fast, not what."""
FREE_IN_GRPO = FREE | {"batch_size"}
"""There a step learns from all its episodes, in however many batches."""


def begin(out: Path, about: Mapping[str, Any], *, resumed_from: int | None = None) -> Training:
    """Write `training.json`; `about` has the fields of `Training` but dates and versions.

    A run that goes on keeps its date, and remembers where. `base` and `license` are found out
    where they are not given.
    """
    there = read(out) if resumed_from is not None else None
    resumes = (*there.resumed_from, resumed_from) if there and resumed_from is not None else ()
    given = {key: value for key, value in plain(about).items() if value is not None}
    if there is not None:
        fewer = fewer_steps(there, given["kind"], given["settings"])
        given["extended_from"] = there.extended_from + (() if fewer is None else (fewer,))
    training = Training(
        created_at=there.created_at if there else datetime.now(UTC),
        versions=versions(*_PACKAGES),
        resumed_from=resumes,
        **{**_origin(str(about["model"])), **given},
    )
    _write(out, training)
    return training


def _origin(model: str) -> JsonObject:
    """The model's name on the Hub and its license, as far as the name or its own record tells."""
    if model == smollm2.NAME:
        return {"base": _SMOLLM2, "license": "apache-2.0"}
    if Path(model).expanduser().exists():
        there = read(Path(model).expanduser())
        return {"base": there.base, "license": there.license} if there else {}
    return {"base": model} if _ON_HUB.fullmatch(model) else {}


def finish(out: Path, figures: Figures, example: Example | None = None) -> Training:
    """Add the figures, and a task for the card; now the run is whole."""
    there = read(out)
    if there is None:
        raise RunError(f"{out} holds no training: there is no {RECORD} in it.")
    finite = Figures.model_validate(plain(figures.model_dump()))
    done = there.model_copy(update={"figures": finite, "example": example})
    _write(out, done)
    return done


def read(out: Path) -> Training | None:
    """What `training.json` says; None where there is none."""
    file = out / RECORD
    try:
        return Training.model_validate(from_json(file.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        raise _unreadable(file, error) from error
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}.") from error


def _unreadable(file: Path, error: ValidationError) -> RunError:
    first = error.errors(include_url=False)[0]
    if first["loc"] == ("version",):
        return RunError(
            f"{file} is of version {first['input']!r}, and this Ludus reads version 1. "
            "Install a newer Ludus."
        )
    where = ".".join(map(str, first["loc"]))
    return RunError(f"{file} is not what a training has: {where}: {first['msg']}.")


def is_begun(out: Path) -> bool:
    """Whether a step was made since the record was written; else nothing is lost with it."""
    there = read(out)
    if there is None:
        return False
    return there.figures is not None or newest(out) is not None or any(lines(out))


def fewer_steps(there: Training, kind: str, settings: Mapping[str, Any]) -> int | None:
    """The steps that a GRPO run was asked for before, where it is now asked for more; else None."""
    if not there.kind == kind == "grpo":
        return None
    before = there.settings["steps"]
    return int(before) if before < settings["steps"] else None


def refuse_another(out: Path, about: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with another model, other rows or settings.

    More steps than a GRPO run had are no other settings: it is extended.
    """
    there = read(out)
    if there is None:
        return
    extends = fewer_steps(there, about["kind"], about["settings"]) is not None
    ignored = ("steps",) if extends else ()
    lines = list(
        describe_differences(_asked(there.model_dump(), ignored), _asked(plain(about), ignored))
    )
    if lines:
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise RunError(
            f"{out} holds a training with other settings ({'; '.join([*lines[:_SHOWN], *more])}). "
            "Use --overwrite to begin anew, or another --output-dir."
        )


def _asked(about: Mapping[str, Any], ignored: Collection[str]) -> JsonObject:
    """What decides the weights. The data's path does not: its digest does."""
    rows, played = about.get("data"), about.get("environment")
    data = {"digest": rows["digest"]} if rows else None
    free = FREE_IN_GRPO if about["kind"] == "grpo" else FREE
    kept = {key: about.get(key) for key in ("kind", "model", "weights", "dialect")}
    settings = decisive(about["settings"], free=free | set(ignored))
    return {**kept, "data": data, "environment": played and played["spec"], **settings}


def decisive(config: Mapping[str, Any], *, free: Collection[str] = FREE) -> JsonObject:
    """Of `Settings.as_json()`, what decides the weights; `free` are those settings that do not."""
    overrides = config.get("overrides") or {}
    kept = {key: value for key, value in overrides.items() if key not in NEUTRAL}
    return {key: value for key, value in config.items() if key not in free} | {"overrides": kept}


def append(out: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the log. A torn one at its end, of a writer that was killed, goes first."""
    text = dump_json(plain(line)) + "\n"
    try:
        with _open_log(out) as file:
            file.seek(_whole(file))
            file.truncate()
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"{out / LOG} cannot be written: {error.strerror or error}.") from error


def rewind(out: Path, step: int) -> None:
    """Drop what was logged after `step`: the run goes on from a checkpoint that was made there."""
    kept = [line for line in lines(out) if line.get("step", 0) <= step]
    _replace(out / LOG, "".join(dump_json(line) + "\n" for line in kept))


def lines(out: Path) -> Iterator[JsonObject]:
    """The log, line by line. What is no line of it is passed over."""
    try:
        with (out / LOG).open("rb") as file:
            for line in file:
                found = _parsed(line)
                if found is not None:
                    yield found
    except FileNotFoundError:
        return


def losses(logged: Sequence[Mapping[str, Any]], key: str = "loss") -> list[tuple[int, float]]:
    """Steps and losses, where they are numbers; `eval_loss` for the test split."""
    found = ((line.get("step"), line.get(key)) for line in logged)
    return [(step, loss) for step, loss in found if step is not None and loss is not None]


def _parsed(line: bytes) -> JsonObject | None:
    try:
        found = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _open_log(out: Path) -> IO[bytes]:
    file = out / LOG
    return file.open("r+b") if file.exists() else file.open("w+b")


def _whole(file: IO[bytes]) -> int:
    """Where the last whole line ends; lines are short, so a block from the end holds it."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _BLOCK)
    file.seek(start)
    return start + file.read().rfind(b"\n") + 1


def _write(out: Path, training: Training) -> None:
    fields = training.model_dump() | {"created_at": training.created_at.isoformat()}
    _replace(out / RECORD, dump_json(fields, indent=2) + "\n")


def _replace(file: Path, text: str) -> None:
    """Write a file whole, or not at all."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        with draft.open("w", encoding="utf-8") as to:
            to.write(text)
            to.flush()
            os.fsync(to.fileno())
        draft.replace(file)
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error
