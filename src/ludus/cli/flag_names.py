"""Flags instead of argument names: `epochs` in a message of the library becomes --epochs.

The library names arguments in backticks. Before the command line prints such a message, it
replaces those that are parameters of the running command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typer.core import TyperCommand

from ludus.errors import LudusError

_ARGUMENT = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)(?:=([^`]+))?`")
_running: Mapping[str, str] = {}
"""Parameter names and flags of the running command. A process runs one."""


class FlagCommand(TyperCommand):
    """A command whose parameters `name_flags` knows while it runs, and after it has failed."""

    def invoke(self, ctx: Any) -> Any:
        global _running
        before, _running = _running, _flags_of(self.params)
        try:
            result = super().invoke(ctx)
        except LudusError:
            # It is printed with the flags of this command, also where another one runs it.
            raise
        except BaseException:
            _running = before
            raise
        _running = before
        return result


def name_flags(message: str, flags: Mapping[str, str] | None = None) -> str:
    """Replace argument names in backticks by `flags`, by default those of the running command.

    Of a nested config, `lora.rank` is --lora-rank, and `lora.merge_adapter` is --merge-adapter.
    With a value, `overwrite=True` is --overwrite, `resume=False` is --no-resume, and `to="dpo"` is
    --to dpo.
    """
    known = _running if flags is None else flags

    def translate(match: re.Match[str]) -> str:
        path, value = match[1], match[2]
        for name in (path, path.replace(".", "_"), path.rpartition(".")[2]):
            if value == "False" and f"{name}=False" in known:
                return known[f"{name}=False"]
            if name in known:
                argument = "" if value in (None, "True") else f" {value}".replace('"', "")
                return f"{known[name]}{argument}"
        return match[0]

    return _ARGUMENT.sub(translate, message)


def command_flags(*path: str) -> dict[str, str]:
    """Parameter names and flags of any command: `command_flags("train", "grpo")`."""
    return _flags_of(find_command(*path).params)


def find_command(*path: str) -> Any:
    """A command, or a group of commands, as Click has it: `find_command("train", "grpo")`."""
    import typer

    from ludus.cli.main import app

    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return command


def name_command_flags(message: str, command: Sequence[str]) -> str:
    """Replace argument names in backticks by the flags of a command, which need not run."""
    return name_flags(message, command_flags(*command))


def _flags_of(params: Iterable[Any]) -> dict[str, str]:
    """Long flags of options, and the placeholders of arguments as the help prints them."""
    flags = {}
    for param in params:
        long = [flag for flag in param.opts if flag.startswith("--")]
        if param.secondary_opts:
            flags[f"{param.name}=False"] = param.secondary_opts[0]
        flags[param.name] = long[0] if long else (param.metavar or param.name.upper()).rstrip(".")
    return flags
