"""What several commands share: options that no config has, and how runs are found by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.hub_uploads import HubTarget
from ludus.environment.faults import capture_faults, report_once
from ludus.errors import ConfigError, RunError, did_you_mean
from ludus.options import Option, expand_path, parse_assignments

if TYPE_CHECKING:
    pass

_SPEC_FORMS = "name, name:variant, file.py:Class, package.module:Class, mcp:COMMAND#TASKS"


def _environments() -> list[str]:
    from ludus.environment.registry import registered_environments

    return list(registered_environments())


def output_option(default: str = "", metavar: str = "PATH") -> Option:
    """The option --output-dir."""
    return Option(
        "Output", name="output_dir", short="o", metavar=metavar, parse=expand_path, default=default
    )


Env = Annotated[
    str,
    Option(metavar="ENV", complete=_environments),
    f"Environment: {_SPEC_FORMS}, URL, docker:IMAGE, or a mixture such as wordle=0.7,catch=0.3.",
]
Spec = Annotated[
    str,
    Option(metavar="SPEC", complete=_environments),
    f"Environment: {_SPEC_FORMS}, URL or docker:IMAGE.",
]
ServedSpec = Annotated[
    str, Option(metavar="SPEC", complete=_environments), f"Environment: {_SPEC_FORMS}."
]
Task = Annotated[
    Mapping[str, Any],
    Option("Tasks", metavar="KEY=VALUE|JSON", combine=parse_assignments),
    "Argument of reset, such as length=6; repeatable.",
]
Token = Annotated[
    str | None,
    Option("Tasks", advanced=True, env_var="LUDUS_TOKEN"),
    "Bearer token of the environment's server. Prefer LUDUS_TOKEN: other users of this machine can "
    "read --token in the list of processes.",
]
Model = Annotated[str, Option(short="m"), "Model to train: smollm2, folder or Hub id."]
TrainOutput = Annotated[
    Path,
    output_option(metavar="OUT"),
    "Folder for the trained model.",
]
Overwrite = Annotated[bool, Option("Output", advanced=True), "Replace an existing output folder."]
Push = Annotated[
    HubTarget | None,
    Option(
        "Output", advanced=True, short="H", metavar="USER/NAME[:private]", parse=HubTarget.parse
    ),
    "Upload to this repository on the Hub.",
]
Thinking = Annotated[
    bool | None,
    Option("Sampling", advanced=True, default="the template's default"),
    "Set enable_thinking of the chat template.",
]
Debug = Annotated[
    bool,
    Option("Output", advanced=True),
    "Print tracebacks of exceptions in the environment's code.",
]
JsonObject = Annotated[bool, Option("Output", advanced=True, name="json"), "Print one JSON object."]
JsonLines = Annotated[
    bool,
    Option("Output", advanced=True, name="json"),
    "Print JSON lines: progress events, and the summary at the end.",
]
Private = Annotated[bool, Option("Output"), "Make the Hub repository private."]

_Config = TypeVar("_Config")


def with_thinking(config: _Config, thinking: bool | None) -> _Config:
    """Return the config with enable_thinking of its chat template set, unless it is None."""
    from ludus.policy.chat.template_kwargs import THINKING_VARIABLE

    if thinking is None:
        return config
    kwargs = config.chat_template_kwargs  # type: ignore[attr-defined]
    if kwargs.get(THINKING_VARIABLE, thinking) is not thinking:
        raise ConfigError(
            f"`thinking={thinking}` contradicts {THINKING_VARIABLE} in `chat_template_kwargs`."
        )
    kwargs = {**kwargs, THINKING_VARIABLE: thinking}
    return replace(config, chat_template_kwargs=kwargs)  # type: ignore[type-var]


def resolve_run_path(text: str) -> Path:
    """Resolve a run: a path, the name of a folder in runs/ or here, or `last`."""
    from ludus.data.run_folder import RUN_FILE, RUNS_DIR, walk_run_folders

    path = expand_path(text)
    if path.exists() or len(path.parts) > 1:
        return path
    folders = {*walk_run_folders(RUNS_DIR), *(child for child in Path().iterdir())}
    runs = sorted(folder for folder in folders if (folder / RUN_FILE).is_file())
    if text == "last":
        if runs:
            return newest_run(runs)
        raise RunError("There is no run in runs/ or in this folder. `ludus collect` creates one.")
    matches = [run for run in runs if run.name == text]
    if len(matches) == 1:
        return matches[0]
    if matches:
        paths = " or ".join(map(str, matches))
        raise RunError(f"Several runs are named {text!r}. Give the path: {paths}.")
    hint = "`ludus runs` lists those below runs/."
    hint = did_you_mean(text, (run.name for run in runs), hint)
    if similar := [run for run in runs if run.name.startswith(text)]:
        hint = f"Did you mean {newest_run(similar).name!r}?"
    raise RunError(f"There is no run, file or folder {text!r}. {hint}")


def newest_run(runs: list[Path]) -> Path:
    """The run that was written to last."""
    from ludus.data.run_folder import RUN_FILE

    def last_write_time(run: Path) -> float:
        files = (run / "episodes.jsonl", run / RUN_FILE, run)
        return next((file.stat().st_mtime for file in files if file.exists()), 0.0)

    return max(runs, key=lambda run: (last_write_time(run), run))


@contextmanager
def record_environment_errors(*, debug: bool) -> Iterator[list[str]]:
    """Yield a list that collects distinct exceptions; `debug` prints tracebacks on stderr."""

    def print_traceback(text: str) -> None:
        console(stderr=True).print(escape_control_chars(text), markup=False, style="dim")

    lines: list[str] = []
    with capture_faults(report_once(lines.append)):
        if not debug:
            yield lines
            return
        with capture_faults(report_once(print_traceback, tracebacks=True)):
            yield lines
