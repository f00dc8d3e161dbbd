"""Options that several commands share, and parsers of their values."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer


def expand_user_path(text: str) -> Path:
    """Expand ~, which the shell leaves alone in `--option=~/path`."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise typer.BadParameter(f"{text}: there is no such user.") from None


def output_dir_option(help: str, *, default: str, metavar: str = "PATH") -> Any:
    """The option --output-dir of a command that chooses a folder itself where none is given."""
    return typer.Option(
        "--output-dir",
        "-o",
        metavar=metavar,
        parser=expand_user_path,
        help=help,
        show_default=default,
    )


_SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPEC_FORMS = "name, name:variant, file.py:Class, package.module:Class, mcp:COMMAND#TASKS"


def complete_environment(incomplete: str) -> list[str]:
    """Names of installed environments, for the shell's completion."""
    from ludus.environment.registry import registered_environments

    return [name for name in registered_environments() if name.startswith(incomplete)]


def _set_action(value: str | None) -> str | None:
    """Pass the type of actions on to worker processes, which look the environment up again."""
    if value is not None:
        os.environ["LUDUS_ACTION"] = value
    return value


Env = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        autocompletion=complete_environment,
        help=f"Environment: {_SPEC_FORMS}, URL, docker:IMAGE, or a mixture such as "
        "wordle=0.7,catch=0.3.",
    ),
]
Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        autocompletion=complete_environment,
        help=f"Environment: {_SPEC_FORMS}, URL or docker:IMAGE.",
    ),
]
ServedSpec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        autocompletion=complete_environment,
        help=f"Environment: {_SPEC_FORMS}.",
    ),
]
Action = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:CLASS",
        envvar="LUDUS_ACTION",
        callback=_set_action,
        help="Type of the actions, if the environment's step does not name it.",
        show_default="found in the module, models, openenv.yaml or app beside it",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="URL of the environment server.", show_default="run ENV in this process"),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="LUDUS_TOKEN",
        help="Bearer token of the environment server. Prefer LUDUS_TOKEN: other users of this "
        "machine can read --token in the process list.",
    ),
]
GroupSize = Annotated[int, typer.Option(min=1, help="Number of episodes per task.")]
DatasetConfig = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help="The dataset_config argument of reset: '{\"max_terms\": 3}'."
    ),
]
Task = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE|JSON",
        help="Other argument of reset: length=6; repeatable. Or all of them: '{\"length\": 6}'.",
    ),
]
Tasks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=expand_user_path,
        help="JSONL file of tasks: reset arguments, or input rows of NeMo Gym.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Ray cluster to run on: HOST:PORT of its head node, auto for the cluster of this "
        "machine, or local to start one.",
        show_default="none",
    ),
]
Explore = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Probability that a turn's action is random; such turns are context without loss.",
    ),
]
Working = Annotated[
    bool,
    typer.Option(
        "--working", help="Let the oracle write its working as text, where the environment has it."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, help="Sampling temperature.", show_default="the model's default"),
]
ExtraFields = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Other fields of each API request: '{\"top_p\": 0.9}'."),
]
Prices = Annotated[
    Path | None, typer.Option(help="JSON file of prices, in US dollars per million tokens.")
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Device of local models (hf): cuda, cuda:1, mps or cpu.",
        show_default="the fastest available",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Dtype of local models (hf): bfloat16, float16 or float32.",
        show_default="depends on the device",
    ),
]
SystemPrompt = Annotated[
    str | None,
    typer.Option(help="System prompt; '' for none.", show_default="a general one"),
]
MaxTurns = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of replies per episode.",
        show_default="20, or more if the environment's rules give more",
    ),
]
MaxTokens = Annotated[
    int, typer.Option(min=1, help="Maximum number of tokens per reply, reasoning included.")
]
MaxEpisodeTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of tokens per episode, over all its replies.",
        show_default="no limit",
    ),
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Set enable_thinking of the chat template.",
        show_default="the template's default",
    ),
]
ChatTemplateKwargs = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help="Arguments of the chat template: '{\"enable_thinking\": false}'."
    ),
]
Concurrency = Annotated[
    int, typer.Option(min=1, help="Maximum number of concurrent calls to the model.")
]
EpisodeTimeout = Annotated[
    str, typer.Option(metavar="TIME", help="Timeout of one episode, such as 90s, 10m or 2h.")
]
MaxCost = Annotated[
    float | None,
    typer.Option(min=0, help="Stop at this cost, in US dollars.", show_default="no limit"),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Stop after this time: 90s, 10m or 2h.", show_default="no limit"
    ),
]
SolvedAt = Annotated[float, typer.Option(help="Minimum reward of a solved task.")]
ResumeRun = Annotated[
    bool,
    typer.Option("--resume/--no-resume", help="Resume the run, or start a new one beside it."),
]
RetryBroken = Annotated[
    bool, typer.Option("--retry-broken", help="Play broken episodes of an earlier run again.")
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Print tracebacks of exceptions in the environment's code."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output folder.")]
PushDataset = Annotated[
    str | None,
    typer.Option(
        "--push-to-hub", "-H", metavar="USER/NAME", help="Upload to this data set on the Hub."
    ),
]
Private = Annotated[bool, typer.Option(help="Make the Hub repository private.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the files that would be uploaded; upload nothing.")
]
JsonObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print JSON lines: progress events and the result.")
]


def parse_json_object(text: str | None, option: str) -> dict[str, Any]:
    """Parse the value of an option as a JSON object; empty if the option was not given."""
    try:
        value = json.loads(text) if text is not None else {}
    except ValueError as error:
        raise typer.BadParameter(f"{option} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option} must be a JSON object, got {text}.")
    return value


def parse_template_options(
    thinking: bool | None, chat_template_kwargs: str | None
) -> dict[str, Any]:
    """Combine the options --thinking and --chat-template-kwargs."""
    from ludus.policy.chat.template_kwargs import THINKING_VARIABLE as THINKING

    kwargs = parse_json_object(chat_template_kwargs, "--chat-template-kwargs")
    if thinking is None:
        return kwargs
    if kwargs.get(THINKING, thinking) is not thinking:
        flag = "--thinking" if thinking else "--no-thinking"
        raise typer.BadParameter(f"{flag} contradicts {THINKING} in --chat-template-kwargs.")
    return {**kwargs, THINKING: thinking}


def parse_task(values: list[str] | None) -> dict[str, Any]:
    """Parse the values of --task: JSON objects, and NAME=VALUE with JSON or a text as the value."""
    from pydantic_core import from_json

    def parse_json(text: str) -> Any:
        try:
            return from_json(text, allow_inf_nan=False)
        except ValueError:
            return text

    arguments: dict[str, Any] = {}
    for text in values or ():
        name, equals, value = text.partition("=")
        if equals and name.isidentifier():
            arguments[name] = parse_json(value)
        elif isinstance(several := parse_json(text), dict):
            arguments |= several
        else:
            raise typer.BadParameter(
                f"--task must be NAME=VALUE, such as length=6, or a JSON object, got {text!r}."
            )
    return arguments


def parse_task_options(task: list[str] | None, dataset_config: str | None) -> dict[str, Any]:
    """Combine the options --task and --dataset-config into arguments of reset."""
    arguments = parse_task(task)
    if dataset_config is not None:
        arguments["dataset_config"] = parse_json_object(dataset_config, "--dataset-config")
    return arguments


def parse_duration(text: str, option: str) -> float:
    """Parse the value of an option as seconds: 90, 90s, 10m, 2h or 1d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise typer.BadParameter(f"{option}: {text!r} is not a duration; write 90s, 10m or 2h.")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
