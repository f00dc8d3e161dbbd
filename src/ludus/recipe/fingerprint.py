"""What the result of a stage depends on: its settings, its inputs and the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import ludus
from ludus.data.run_folder import RUNS_DIR
from ludus.environment.registry import is_remote, registered_environments
from ludus.environment.source_file import SourceFile
from ludus.environment.user_modules import user_module_path
from ludus.recipe.content_digest import content_digest, stat_digest
from ludus.recipe.recipe_file import Stage, texts_in
from ludus.recipe.state import RecipeState, StageRecord

_ENVIRONMENT_KEYS = ("env", "spec")
_FUNCTION_KEYS = ("reward_func",)
_INPUT_KEYS = (
    "candidate",
    "data",
    "exclude_tasks_in",
    "held_out",
    "model",
    "runs",
    "source",
    "sources",
    "student",
    "tasks",
    "tutor",
)
"""Options that may name a file or folder to read: runs, data sets, models and tasks."""
_RUN_KEYS = ("runs", "source", "sources")
"""Of these, the options that also find runs by name in the folder of runs."""
_SECRET_KEYS = ("token",)
_RESULT_NEUTRAL_KEYS = (
    "cache",
    "checkpoint_every",
    "concurrency",
    "debug",
    "device",
    "ray",
    "report_to",
    "workers",
)
"""Options that do not affect the result: changing them does not run a stage again."""
_WEIGHT = re.compile(r"=\s*[\d.]+\s*$")


def fingerprint_stage(
    stage: Stage,
    outputs: Mapping[str, Path | None],
    state: RecipeState,
    code: Mapping[str, str] | None = None,
) -> StageRecord:
    """What the stage would be run with now.

    Args:
        stage: The stage.
        outputs: Files and folders of all stages.
        state: What the stages were run with.
        code: Digests of its code; by default of the code as it is now.
    """
    if code is None:
        code = {"ludus": ludus.__version__, **dict(user_code(stage))}
    inputs = {name: output_digest(outputs[name], state.stages.get(name)) for name in stage.inputs}
    for name, path in input_paths(stage):
        inputs[name] = content_digest(path)
    return StageRecord(
        command=stage.command,
        settings={
            key: value
            for key, value in stage.options.items()
            if key not in (*_SECRET_KEYS, *_RESULT_NEUTRAL_KEYS)
        },
        inputs=inputs,
        code=dict(code),
    )


def output_digest(output: Path | None, record: StageRecord | None) -> str:
    """The digest of a result: the recorded one, unless its files have changed since."""
    if output is None:
        return ""
    if record is not None and record.done and record.output_stat == stat_digest(output):
        return record.output
    return content_digest(output)


def input_paths(stage: Stage) -> Iterator[tuple[str, Path]]:
    """Files and folders that the options name, as they are written and as they are found."""
    for key in _INPUT_KEYS:
        for text in texts_in(stage.options.get(key)):
            for name, path in _possible_paths(key, text):
                if name and "{" not in name and _exists(path):
                    yield name, path.expanduser()
                    break


def _possible_paths(key: str, text: str) -> Iterator[tuple[str, Path]]:
    """What a text may mean: a path, `hf:PATH`, `label=PATH` of a candidate, the name of a run."""
    names = [text, text.partition("=")[2]] if key == "candidate" else [text]
    for name in (each.removeprefix("hf:") for each in names):
        yield name, Path(name)
    if key in _RUN_KEYS:
        yield text, RUNS_DIR / text


def user_code(stage: Stage) -> Iterator[tuple[str, str]]:
    """Digests of the code of environments and reward functions that do not ship with Ludus."""
    for key in _ENVIRONMENT_KEYS:
        specs = stage.options.get(key)
        if isinstance(specs, str) and not is_remote(specs):
            yield from _environment_code(_without_weight(spec) for spec in specs.split(","))
    for key in _FUNCTION_KEYS:
        for text in texts_in(stage.options.get(key)):
            yield from _module_code(_without_weight(text).partition(":")[0])


def _environment_code(specs: Iterable[str]) -> Iterator[tuple[str, str]]:
    registered = registered_environments()
    for spec in specs:
        if (source := SourceFile.parse(spec)) is not None:
            yield str(source.path), content_digest(source.path)
            continue
        name, _, rest = spec.partition(":")
        if name.startswith("mcp"):
            yield from _files_in_command(rest)
        point = registered.get(name)
        yield from _module_code(name if point is None else point.module)


def _files_in_command(command: str) -> Iterator[tuple[str, str]]:
    """Files that the spec of an MCP server names: its task file, and words of its command."""
    target, _, tasks = command.rpartition("#")
    for word in (*target.split(), tasks):
        if word and _exists(path := Path(word)) and path.expanduser().is_file():
            yield word, content_digest(path.expanduser())


def _module_code(module: str) -> Iterator[tuple[str, str]]:
    package = module.partition(".")[0]
    # A command of an MCP server, for instance, is not the name of a module.
    if package == ludus.__name__ or not module.replace(".", "").isidentifier():
        return
    if (path := user_module_path(package)) is not None:
        yield module, content_digest(path)


def _without_weight(spec: str) -> str:
    return _WEIGHT.sub("", spec).strip()


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # A text that is no path, such as a long prompt.
        return False
