"""What the result of a stage depends on: its settings, its inputs and the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import ludus
from ludus.environment.registry import is_remote, registered_environments
from ludus.environment.source_file import SourceFile
from ludus.recipe.content_digest import content_digest, stat_digest
from ludus.recipe.recipe_file import Stage, texts_in
from ludus.recipe.state import RecipeState, StageRecord

_ENVIRONMENT_KEYS = ("env", "spec")
_SECRET_KEYS = ("token",)
_NON_DECISIVE_KEYS = (
    *("report_to", "device", "concurrency", "workers", "ray", "checkpoint_every", "debug"),
)
"""Options that do not affect the result: changing them does not run a stage again."""
_WEIGHT = re.compile(r"=\s*[\d.]+\s*$")


def fingerprint_stage(
    stage: Stage, outputs: Mapping[str, Path | None], state: RecipeState
) -> StageRecord:
    """What the stage would be run with now."""
    inputs = {name: output_digest(outputs[name], state.stages.get(name)) for name in stage.inputs}
    for path in named_paths(stage):
        inputs[str(path)] = content_digest(path)
    return StageRecord(
        command=stage.command,
        settings={
            key: value
            for key, value in stage.options.items()
            if key not in (*_SECRET_KEYS, *_NON_DECISIVE_KEYS)
        },
        inputs=inputs,
        code={"ludus": ludus.__version__, **dict(environment_code(stage))},
    )


def output_digest(output: Path | None, record: StageRecord | None) -> str:
    """The digest of a result: the recorded one, unless its files have changed since."""
    if output is None:
        return ""
    if record is not None and record.done and record.output_stat == stat_digest(output):
        return record.output
    return content_digest(output)


def named_paths(stage: Stage) -> Iterator[Path]:
    """Files and folders that the options name: a task file, a model, a file of rewards."""
    for key, value in stage.options.items():
        if key in _ENVIRONMENT_KEYS:
            continue
        for text in texts_in(value):
            # Also of `label=hf:PATH` and `rewards.py:function`.
            labelled = text.rpartition("=")[2].removeprefix("hf:")
            for name in dict.fromkeys((text, labelled, labelled.partition(":")[0])):
                if name and "{" not in name and "\n" not in name and _exists(Path(name)):
                    yield Path(name)
                    break


def environment_code(stage: Stage) -> Iterator[tuple[str, str]]:
    """The code of environments that do not ship with Ludus: its digest, or its version."""
    for key in _ENVIRONMENT_KEYS:
        specs = stage.options.get(key)
        if isinstance(specs, str) and not is_remote(specs):
            yield from _code_of(_WEIGHT.sub("", spec).strip() for spec in specs.split(","))


def _code_of(specs: Iterable[str]) -> Iterator[tuple[str, str]]:
    registered = registered_environments()
    for spec in specs:
        if (source := SourceFile.parse(spec)) is not None:
            yield str(source.path), content_digest(source.path)
            continue
        name = spec.partition(":")[0]
        if (point := registered.get(name)) is not None:
            if point.dist is not None and not point.value.startswith("ludus."):
                yield point.dist.name, point.dist.version
        elif name.replace(".", "").isidentifier():
            module = find_spec(name.partition(".")[0])
            if module is not None and module.origin is not None:
                file = Path(module.origin)
                is_package = file.name == "__init__.py"
                yield name, content_digest(file.parent if is_package else file)


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # A text that is no path, such as a long prompt.
        return False
