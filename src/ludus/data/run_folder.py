"""The run folder: its metadata, and where its files are.

runs/wordle/
  run.json          settings, their digest, versions; written once, holds no secrets
  episodes.jsonl    append-only, see `ludus.data.journal`
  summary.json      rewritten while the run goes on
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, ValidationError

from ludus.data.config import config_digest, describe_differences
from ludus.data.files import DRAFT_SUFFIX, create_atomically, fsync_path, write_atomically
from ludus.data.json_files import dump_json, read_json_object
from ludus.data.tool_schema import FrozenModel, JsonObject
from ludus.errors import OtherSettings, RunError

RUN_FILE, SUMMARY_FILE = "run.json", "summary.json"
RUNS_DIR = Path("runs")
"""Folder, in the current one, of runs that are given no other."""
_MAX_DEPTH = 3
_MAX_SHOWN = 20


class RunMetadata(FrozenModel):
    """The content of `run.json`."""

    version: Literal[1] = 1
    kind: str = "collect"
    """The stage that wrote it."""
    created_at: AwareDatetime
    digest: str
    """Eight hex digits, the same for the same settings; see `config_digest`."""
    settings: JsonObject
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder with a `run.json`."""

    path: Path
    metadata: RunMetadata

    @classmethod
    def create(cls, path: Path, settings: JsonObject, *, kind: str = "collect") -> RunFolder:
        """Start a run in a new folder or an empty one."""
        metadata = RunMetadata(
            kind=kind,
            created_at=datetime.now(UTC),
            digest=config_digest(settings),
            settings=settings,
            versions=versions(),
        )
        fields = metadata.model_dump() | {"created_at": metadata.created_at.isoformat()}
        text = dump_json(fields, indent=2) + "\n"
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, not a folder. Use another `out`.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            names = sorted(file.name for file in path.iterdir() if file.suffix != DRAFT_SUFFIX)
            if RUN_FILE in names:
                raise RunError(f"{path} holds a run already. Use another `out`.")
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise RunError(
                    f"{path} is not empty ({names[0]}{more}) and holds no run: it has no "
                    "run.json. Use another `out`."
                )
            if not create_atomically(path / RUN_FILE, text):
                raise RunError(f"Another process has just started a run in {path}.")
            fsync_path(path)
            fsync_path(path.absolute().parent)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the run in a folder."""
        file = path / RUN_FILE
        try:
            fields = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{path} holds no run: it has no run.json.") from None
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise RunError(f"{file} is not JSON: {error}.") from error
        if not isinstance(fields, dict):
            raise RunError(f"{file} is not a JSON object.")
        try:
            return cls(path, RunMetadata.model_validate(fields))
        except ValidationError as error:
            if fields.get("version") != 1:
                raise RunError(
                    f"{file} has version {fields.get('version')!r}, and this Ludus reads version "
                    "1. Install a newer Ludus."
                ) from error
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RunError(f"{file} is invalid: {where}: {first['msg']}.") from error

    @classmethod
    def resume_or_create(
        cls, path: Path, settings: JsonObject, *, kind: str = "collect"
    ) -> RunFolder:
        """Open the run in a folder if its settings are the same, or start a new one.

        Raises `OtherSettings` if the folder holds a run with other settings.
        """
        if not (path / RUN_FILE).exists():
            return cls.create(path, settings, kind=kind)
        run = cls.open(path)
        if run.metadata.kind != kind:
            raise RunError(
                f"{path} holds a run of another kind: {run.metadata.kind}, not {kind}. "
                "Use another `out`."
            )
        if run.metadata.digest != config_digest(settings):
            lines = list(describe_differences(run.metadata.settings, settings))
            if not lines:
                lines = [f"its run.json was edited: its digest is not {run.metadata.digest}"]
            if len(lines) > _MAX_SHOWN:
                lines[_MAX_SHOWN:] = [f"and {len(lines) - _MAX_SHOWN} more"]
            listed = "\n".join(f"  {line}" for line in lines)
            raise OtherSettings(
                f"{path} holds a run with other settings:\n{listed}\n"
                "Use `resume=False` to start a new run beside it, or use another `out`."
            )
        return run

    @property
    def episodes_path(self) -> Path:
        return self.path / "episodes.jsonl"

    def write_summary(self, summary: JsonObject) -> None:
        """Write `summary.json`, completely or not at all."""
        write_atomically(self.path / SUMMARY_FILE, dump_json(summary, indent=2) + "\n")

    def read_summary(self) -> JsonObject:
        """The content of `summary.json`; empty if it is missing or damaged.

        It can always be computed from the journal again.
        """
        return read_json_object(self.path / SUMMARY_FILE)


def find_unused_dir(path: Path) -> Path:
    """Find the first of `path`, `path-2`, `path-3` and so on that does not exist yet."""
    if path.name in ("", ".."):
        path = path.resolve()
    folder, number = path, 1
    while folder.exists():
        number += 1
        folder = path.with_name(f"{path.name}-{number}")
    return folder


def find_runs(root: Path) -> list[RunFolder]:
    """The runs in a folder and up to three levels below it, the oldest first.

    A `run.json` of another tool is ignored.
    """
    runs = []
    for folder in walk_run_folders(root):
        if (folder / RUN_FILE).is_file():
            with suppress(RunError):
                runs.append(RunFolder.open(folder))
    return sorted(runs, key=lambda run: (run.metadata.created_at, run.path))


def walk_run_folders(root: Path, max_depth: int = _MAX_DEPTH) -> Iterator[Path]:
    """`root` and the folders up to `max_depth` levels below it, which may be run folders.

    Hidden ones are left out. A folder that is reached by several links is yielded once.
    """
    seen: set[Path] = set()

    def walk(folder: Path, depth: int) -> Iterator[Path]:
        try:
            identity = folder.resolve()
            if identity in seen or not folder.is_dir():
                return
            children = sorted(folder.iterdir())
        except OSError:
            return
        seen.add(identity)
        yield folder
        for child in children if depth else ():
            if not child.name.startswith("."):
                yield from walk(child, depth - 1)

    return walk(root, max_depth)


DISTRIBUTION = "ludus-rl"


def versions(*packages: str) -> dict[str, str]:
    """The versions of Ludus, Python and the installed `packages`."""
    installed = {"ludus": version(DISTRIBUTION), "python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed
