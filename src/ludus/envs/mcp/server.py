"""Which server to connect to, and its settings in a task file."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from string import Template
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from ludus.errors import ConfigError


class ServerConfig(BaseModel):
    """The table `[server]` of a task file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one call of a tool."""
    start_timeout: float = Field(default=60.0, gt=0)
    """Seconds for starting the server and listing its tools."""
    restart: bool = True
    """Whether every episode gets a new server, or a new session over HTTP. False is faster, for
    servers that keep no state between calls."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server; `$NAME` is replaced by a variable of this process."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers; `$NAME` is replaced likewise."""


@dataclass(frozen=True)
class Server:
    """A server: a command to start, or a URL."""

    config: ServerConfig
    command: tuple[str, ...] = ()
    url: str | None = None


def build_server(target: str, config: ServerConfig) -> Server:
    """The server of a command line or an HTTP URL."""
    config = config.model_copy(
        update={
            "env": {name: _substitute(value) for name, value in config.env.items()},
            "headers": {name: _substitute(value) for name, value in config.headers.items()},
        }
    )
    if target.startswith(("http://", "https://")):
        if not urlsplit(target).hostname:
            raise ConfigError(f"mcp+{target} names no host. Write mcp+http://HOST/PATH.")
        if "@" in urlsplit(target).netloc:
            raise ConfigError(
                "A URL must not contain a user name or a password, because it is recorded. "
                "Use `headers` in the task file."
            )
        return Server(config, url=target)
    try:
        command = tuple(shlex.split(target))
    except ValueError as error:
        raise ConfigError(f"mcp:{target} is not a command: {error}.") from None
    if not command:
        raise ConfigError("Name the MCP server: mcp:COMMAND#TASKS, such as mcp:my-server#t.jsonl.")
    if shutil.which(command[0], path=config.env.get("PATH")) is None:
        raise ConfigError(
            f"The command {command[0]!r} was not found. Install the MCP server, or check PATH."
        )
    return Server(config, command=command)


def _substitute(value: str) -> str:
    try:
        return Template(value).substitute(os.environ)
    except KeyError as error:
        raise ConfigError(f"The task file uses ${error.args[0]}, which is not set.") from None
    except ValueError:
        raise ConfigError(f"{value!r} has a $ without a name; write $$ for a dollar.") from None
