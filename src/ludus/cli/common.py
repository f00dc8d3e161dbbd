"""Options of several commands that no config has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from ludus.errors import ConfigError
from ludus.options import Option, expand_path, parse_assignments

if TYPE_CHECKING:
    from ludus.publish.hub_upload import RepoKind

_SPEC_FORMS = "name, name:variant, file.py:Class, package.module:Class, mcp:COMMAND#TASKS"


def _environments() -> list[str]:
    from ludus.environment.registry import registered_environments

    return list(registered_environments())


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A repository on the Hub to upload to, as --push-to-hub names it: NAME or NAME:private."""

    repo_id: str
    private: bool

    @classmethod
    def parse(cls, text: str) -> HubTarget:
        repo_id, colon, visibility = text.partition(":")
        if colon and visibility not in ("private", "public"):
            raise ValueError(f"{text!r} is not USER/NAME or USER/NAME:private")
        return cls(repo_id, visibility == "private")

    def check(self, kind: RepoKind | None = None) -> None:
        """Check the name, offline, and that there is a login."""
        from ludus.publish.hub_upload import DATASET, check_login, check_upload_target

        check_upload_target(self.repo_id, kind or DATASET)
        check_login()

    def create(self, kind: RepoKind | None = None) -> None:
        """Create the repository before the work, so that a refusal costs nothing."""
        from ludus.publish.hub_upload import DATASET, open_repo

        open_repo(self.repo_id, kind or DATASET, private=self.private)


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
Model = Annotated[str, Option(short="m"), "Model to train: smollm2, folder, .gguf file or Hub id."]
TrainOutput = Annotated[
    Path,
    Option("Output", name="output_dir", short="o", metavar="OUT", parse=expand_path),
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
    "Print JSON lines: progress events and the result.",
]
Private = Annotated[bool, Option("Output"), "Make the Hub repository private."]
DryRun = Annotated[bool, Option("Output"), "List the files that would be uploaded; upload nothing."]

_Config = TypeVar("_Config")


def with_thinking(config: _Config, thinking: bool | None) -> _Config:
    """The config with enable_thinking of its chat template set, if the option was given."""
    kwargs = template_kwargs(config.chat_template_kwargs, thinking)  # type: ignore[attr-defined]
    return replace(config, chat_template_kwargs=kwargs)  # type: ignore[type-var]


def template_kwargs(kwargs: Mapping[str, Any], thinking: bool | None) -> Mapping[str, Any]:
    """The arguments of the chat template, with enable_thinking if that option was given."""
    from ludus.policy.chat.template_kwargs import THINKING_VARIABLE

    if thinking is None:
        return kwargs
    if kwargs.get(THINKING_VARIABLE, thinking) is not thinking:
        raise ConfigError(
            f"`thinking={thinking}` contradicts {THINKING_VARIABLE} in `chat_template_kwargs`."
        )
    return {**kwargs, THINKING_VARIABLE: thinking}
