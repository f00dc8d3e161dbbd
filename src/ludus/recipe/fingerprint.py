"""What the result of a stage depends on: settings, inputs and code; recorded in `recipe.json`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b, file_digest
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import ludus
from ludus.data.files import write_atomically
from ludus.data.run_folder import RUNS_DIR
from ludus.data.tool_schema import JsonObject
from ludus.environment.registry import is_remote, registered_environments
from ludus.environment.source_file import SourceFile, user_module_path
from ludus.errors import RunError
from ludus.recipe.recipe_file import Stage, texts_in

_CODE_KEYS = ("env", "spec", "reward_func")
"""Options that name environments and functions."""
_INPUT_KEYS = (
    *("candidate", "data", "exclude_tasks_in", "held_out", "model", "runs", "source", "sources"),
    *("tasks", "tutor"),
)
"""Options that may name a file or folder to read: runs, data sets, models and tasks."""
_RUN_KEYS = ("runs", "source", "sources")
"""The subset that also finds runs by name in the folder of runs."""
_SECRET_KEYS = ("token",)
_RESULT_NEUTRAL_KEYS = (
    *("cache", "checkpoint_every", "concurrency", "debug", "device", "ray", "report_to"),
    "workers",
)
"""Options that do not affect the result: changing them does not run a stage again."""
_WEIGHT = re.compile(r"=\s*[\d.]+\s*$")


def fingerprint_stage(stage: Stage, outputs: Mapping[str, Path | None]) -> StageRecord:
    """Fingerprint the settings and inputs that a stage would run with now."""
    inputs = {name: content_digest(outputs[name]) for name in stage.inputs}
    inputs |= {name: content_digest(path) for name, path in input_paths(stage)}
    inputs |= {name: content_digest(path) for name, path in code_paths(stage)}
    return StageRecord(
        command=stage.command,
        settings={
            key: value
            for key, value in stage.options.items()
            if key not in (*_SECRET_KEYS, *_RESULT_NEUTRAL_KEYS)
        },
        inputs={"ludus": ludus.__version__, **inputs},
    )


def input_paths(stage: Stage) -> Iterator[tuple[str, Path]]:
    """Files and folders in the options: as written, and as found."""
    for key in _INPUT_KEYS:
        for text in texts_in(stage.options.get(key)):
            # A path, `hf:PATH`, `label=PATH` of a candidate, or the name of a run.
            names = [text, text.partition("=")[2]] if key == "candidate" else [text]
            paths = [(name, Path(name)) for name in (each.removeprefix("hf:") for each in names)]
            paths += [(text, RUNS_DIR / text)] if key in _RUN_KEYS else []
            for name, path in paths:
                if name and "{" not in name and _exists(path):
                    yield name, path.expanduser()
                    break


def code_paths(stage: Stage) -> Iterator[tuple[str, Path]]:
    """Yield the user's own files and packages of environments and rewards."""
    texts = [text for key in _CODE_KEYS for text in texts_in(stage.options.get(key))]
    parts = [part for text in texts if not is_remote(text) for part in text.split(",")]
    for spec in (_WEIGHT.sub("", part).strip() for part in parts):
        if (source := SourceFile.parse(spec)) is not None:
            yield str(source.path), source.path
            continue
        name = spec.partition(":")[0]
        point = registered_environments().get(name)
        module = name if point is None else point.module
        package = module.partition(".")[0]
        # The command of an MCP server, for instance, is not the name of a module.
        is_module = package != ludus.__name__ and module.replace(".", "").isidentifier()
        if is_module and (path := user_module_path(package)) is not None:
            yield module, path


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # A text that is no path, such as a long prompt.
        return False


_SKIPPED_DIRS = ("checkpoints", "__pycache__", "earlier")
"""Folders whose content is not part of a result."""
_DIGEST_BYTES = 8


def content_digest(path: Path | None) -> str:
    """Hash a file, or the names and contents of a folder's files.

    Hidden files and checkpoints are left out. Empty for a path that does not exist.
    """
    if path is None or not path.exists():
        return ""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for file in _visible_files(path):
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        try:
            with file.open("rb") as stream:
                digest.update(file_digest(stream, blake2b).digest())
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest()


def _visible_files(path: Path) -> Iterator[Path]:
    """The file itself, or those below a folder in the order of their names."""
    if path.is_file():
        yield path
        return
    for folder, names, file_names in os.walk(path):
        names[:] = sorted(
            name for name in names if name not in _SKIPPED_DIRS and not name.startswith(".")
        )
        for name in sorted(file_names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file


STATE_FILE = "recipe.json"


class StageRecord(BaseModel):
    """What a stage was started with and, once it is done, its result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    settings: JsonObject
    inputs: dict[str, str] = Field(default_factory=dict)
    """Version of Ludus, and digests of results of earlier stages, files and code."""
    done: bool = False
    seconds: float = 0.0
    """Over all starts; what a killed start has spent is not known."""


class RecipeState(BaseModel):
    """The stages of a recipe that were started, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    stages: dict[str, StageRecord] = Field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> RecipeState:
        """Read the recorded fingerprints; a folder without them gives an empty state."""
        file = folder / STATE_FILE
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
        except ValidationError:
            raise RunError(
                f"{file} is damaged, or of another version of Ludus. Remove it: stages whose "
                "result is complete only check it again."
            ) from None

    def with_record(self, name: str, record: StageRecord) -> RecipeState:
        return self.model_copy(update={"stages": {**self.stages, name: record}})

    def save(self, folder: Path) -> None:
        """Write the fingerprints, completely or not at all."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        write_atomically(folder / STATE_FILE, text + "\n")
