"""What `ludus collect` and `ludus eval` are both given, in the same words; and tasks as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def expand_user_path(text: str) -> Path:
    """A path, with the folder that ~ stands for, where no shell has put it in."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise typer.BadParameter(f"{text}: there is no such user here.") from None


Env = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="name, name:variant, file.py:Class, package.module:Class, URL, or a mix: "
        "wordle=0.7,catch=0.3.",
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option(help="Where ENV is served.", show_default="in this process")
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="LUDUS_TOKEN",
        help="Bearer token of the server. Better set LUDUS_TOKEN: the process list shows --token.",
    ),
]
GroupSize = Annotated[int, typer.Option(min=1, help="How often each task is played.")]
DatasetConfig = Annotated[
    str | None, typer.Option(help="The task's dataset_config, as JSON: '{\"max_terms\": 3}'.")
]
Task = Annotated[str | None, typer.Option(help="More task arguments, as JSON: '{\"length\": 6}'.")]
Tasks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=expand_user_path,
        help="Play the tasks of a JSONL file: reset arguments, or NeMo Gym's input rows.",
    ),
]
Device = Annotated[
    str | None, typer.Option(help="For hf: cuda, cuda:1, mps, cpu.", show_default="the best")
]
Dtype = Annotated[
    str | None,
    typer.Option(help="For hf: bfloat16, float16, float32.", show_default="by device"),
]
SystemPrompt = Annotated[
    str | None, typer.Option(help="What the model is told first; '' for nothing.")
]
MaxTurns = Annotated[int, typer.Option(min=1, help="Replies in an episode.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens in one reply, thoughts included.")]
MaxEpisodeTokens = Annotated[
    int | None,
    typer.Option(
        min=1, help="Most tokens in all replies of an episode together.", show_default="no limit"
    ),
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Switch thinking on or off: the chat template's enable_thinking.",
        show_default="the template's own",
    ),
]
ChatTemplateKwargs = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help="Arguments of the chat template: '{\"enable_thinking\": false}'."
    ),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Calls to the model at once, at the most.")]
EpisodeTimeout = Annotated[str, typer.Option(help="For one episode: 90s, 10m or 2h.")]
RetryBroken = Annotated[
    bool, typer.Option("--retry-broken", help="Play recorded broken episodes again.")
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Print the traceback of an exception in the environment's code."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines, for machines.")]


def parse_json_object(text: str | None, option: str) -> dict[str, Any]:
    """What an option says in JSON; nothing where it was not given."""
    try:
        value = json.loads(text) if text is not None else {}
    except ValueError as error:
        raise typer.BadParameter(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option} wants a JSON object.")
    return value


def template_kwargs(thinking: bool | None, chat_template_kwargs: str | None) -> dict[str, Any]:
    """The arguments of the chat template that --thinking and --chat-template-kwargs give."""
    from ludus.policy.chat.template_defaults import THINKING_VARIABLE

    kwargs = parse_json_object(chat_template_kwargs, "--chat-template-kwargs")
    if thinking is None:
        return kwargs
    if kwargs.get(THINKING_VARIABLE, thinking) is not thinking:
        option = "--thinking" if thinking else "--no-thinking"
        raise typer.BadParameter(
            f"{option} and --chat-template-kwargs differ on {THINKING_VARIABLE}."
        )
    return {**kwargs, THINKING_VARIABLE: thinking}


def task_arguments(task: str | None, dataset_config: str | None) -> dict[str, Any]:
    """The arguments of reset that --task and --dataset-config give."""
    arguments = parse_json_object(task, "--task")
    if dataset_config is not None:
        arguments["dataset_config"] = parse_json_object(dataset_config, "--dataset-config")
    return arguments
