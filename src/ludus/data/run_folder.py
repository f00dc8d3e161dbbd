"""The run folder: what was asked for, and where its files lie.

    runs/wordle/
      run.json          settings, their digest, versions; written once, never a secret
      episodes.jsonl    append-only: `ludus.data.journal`
      summary.json      written anew whenever there is something to sum up

What the settings mean is the business of the stage that runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from ludus.data.config_diff import config_digest, describe_differences, dump_json
from ludus.data.journal import fsync_dir
from ludus.data.tool_schema import JsonObject
from ludus.data.versions import versions
from ludus.errors import RunError

_MAX_DEPTH = 3
_MAX_SHOWN = 20
_DRAFT_SUFFIX = ".draft"


class RunMetadata(BaseModel):
    """What `run.json` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    kind: str = "collect"
    """The stage that made it."""
    created_at: AwareDatetime
    digest: str
    """Eight hex digits of the settings: the same ones give the same."""
    settings: JsonObject
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder with a `run.json`."""

    path: Path
    metadata: RunMetadata

    @classmethod
    def create(
        cls,
        path: Path,
        settings: JsonObject,
        *,
        kind: str = "collect",
    ) -> RunFolder:
        """Begin a run, in a new folder or an empty one."""
        about = RunMetadata(
            kind=kind,
            created_at=datetime.now(UTC),
            digest=config_digest(settings),
            settings=settings,
            versions=versions(),
        )
        text = _to_json(about.model_dump() | {"created_at": about.created_at.isoformat()})
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, and a run needs a folder. Use another --output-dir.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            _require_empty(path)
            _write_new(path / "run.json", text)
            fsync_dir(path.absolute().parent)
        except OSError as error:
            raise RunError(f"No run can begin in {path}: {error.strerror or error}.") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run that is in this folder."""
        file = path / "run.json"
        fields = _read_json_object(file)
        if fields is None:
            raise RunError(f"{path} holds no run: there is no run.json in it.")
        try:
            return cls(path, RunMetadata.model_validate(fields))
        except ValidationError as error:
            if fields.get("version") != 1:
                raise RunError(
                    f"{file} is of version {fields.get('version')!r}, and this Ludus reads "
                    "version 1. Install a newer Ludus."
                ) from error
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RunError(f"{file} is not what a run has: {where}: {first['msg']}.") from error

    @classmethod
    def resume_or_create(
        cls,
        path: Path,
        settings: JsonObject,
        *,
        kind: str = "collect",
    ) -> RunFolder:
        """The run in this folder if it was made with these settings, or a new one.

        With other settings it is an error: episodes of two kinds in one file are worth nothing.
        """
        if not (path / "run.json").exists():
            return cls.create(path, settings, kind=kind)
        there = cls.open(path)
        if there.metadata.kind != kind:
            raise RunError(
                f"{path} holds a run of another kind: {there.metadata.kind}, not {kind}. "
                "Use another --output-dir."
            )
        if there.metadata.digest != config_digest(settings):
            raise RunError(_describe_mismatch(there, settings))
        return there

    @property
    def episodes_path(self) -> Path:
        return self.path / "episodes.jsonl"

    def write_summary(self, summary: JsonObject) -> None:
        """Write `summary.json`, whole or not at all."""
        file = self.path / "summary.json"
        try:
            draft = _write_draft(file, _to_json(summary))
            draft.replace(file)
            fsync_dir(self.path)
        except OSError as error:
            raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error

    def read_summary(self) -> JsonObject | None:
        """What `summary.json` says; None before there is one."""
        return _read_json_object(self.path / "summary.json")


def create_unused_dir(path: Path) -> Path:
    """Make the first folder that is not there yet of `path`, `path-2`, `path-3` and so on."""
    if path.name in ("", ".."):
        path = path.resolve()
    candidate, number = path, 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                candidate.mkdir()
                return candidate
            except FileExistsError:
                number += 1
                candidate = path.with_name(f"{path.name}-{number}")
    except OSError as error:
        raise RunError(f"{candidate} cannot be made: {error.strerror or error}.") from error


def find_runs(root: Path) -> list[RunFolder]:
    """The runs in this folder and up to three levels below it, the oldest first.

    A `run.json` that is not one of ours is passed over: other tools have files of that name.
    """
    found = []
    for folder in walk_folders(root):
        if (folder / "run.json").is_file():
            try:
                found.append(RunFolder.open(folder))
            except RunError:
                continue
    return sorted(found, key=lambda run: (run.metadata.created_at, run.path))


def walk_folders(root: Path) -> Iterator[Path]:
    """Where a run may be: `root` and the folders up to three levels below it."""
    return _walk(root, _MAX_DEPTH, set())


def _walk(root: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """`root` and the folders below it, each one once, however many links lead there."""
    try:
        status = root.stat()
        identity = status.st_dev, status.st_ino
        below = sorted(root.iterdir()) if root.is_dir() and identity not in seen else None
    except OSError:
        return
    if below is None:
        return
    seen.add(identity)
    yield root
    if depth:
        for folder in below:
            if not folder.name.startswith("."):
                yield from _walk(folder, depth - 1, seen)


def _require_empty(path: Path) -> None:
    """Episodes without a `run.json` are of who knows which run, and other files are not ours."""
    names = sorted(file.name for file in path.iterdir() if file.suffix != _DRAFT_SUFFIX)
    if "run.json" in names:
        raise RunError(f"{path} holds a run already. Use another --output-dir.")
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"{path} is not empty ({names[0]}{more}) and holds no run: there is no run.json in it. "
            "Use another --output-dir."
        )


def _write_new(file: Path, text: str) -> None:
    """Write a file that must not be there yet. A link, unlike a rename, never replaces one."""
    draft = _write_draft(file, text)
    try:
        os.link(draft, file)
    except FileExistsError as error:
        raise RunError(f"Another run began in {file.parent} just now.") from error
    except OSError:
        # A file system without links. That nobody began here was seen a moment ago.
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    fsync_dir(file.parent)


def _write_draft(file: Path, text: str) -> Path:
    """The text on the disk, under a name that nobody reads."""
    draft = file.with_name(f".{file.name}.{os.getpid()}{_DRAFT_SUFFIX}")
    with draft.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    return draft


def _to_json(value: JsonObject) -> str:
    return dump_json(value, indent=2) + "\n"


def _read_json_object(file: Path) -> JsonObject | None:
    try:
        value = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise RunError(f"{file} is not a JSON object.")
    return value


def _describe_mismatch(there: RunFolder, settings: JsonObject) -> str:
    lines = list(describe_differences(there.metadata.settings, settings))
    if not lines:
        lines = [f"its run.json was changed by hand: its digest is not {there.metadata.digest}"]
    if len(lines) > _MAX_SHOWN:
        lines[_MAX_SHOWN:] = [f"and {len(lines) - _MAX_SHOWN} more"]
    listed = "\n".join(f"  {line}" for line in lines)
    return (
        f"{there.path} holds a run with other settings:\n{listed}\n"
        "Use --no-resume for a new run beside it, or another --output-dir."
    )
