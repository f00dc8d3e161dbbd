"""Containers of environment images: started on a free loopback port, and always removed.

The engine is Docker, or Podman if there is no Docker. A supervisor process runs the container and
removes it when this process ends, even by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from ludus.errors import ConfigError, ContainerFailed

SERVER_PORT = 8000
"""The port on which the server of an image listens, in OpenEnv's images as well."""
HEALTH_TIMEOUT_S = 120.0
ENGINES = ("docker", "podman")
ENGINE_VARIABLE = "LUDUS_CONTAINER_ENGINE"
CONTAINER_LABEL = "ludus"

_SUPERVISOR = Path(__file__).with_name("container_supervisor.py")
_ENGINE_ERROR_CODE = 125
"""Exit code of `docker run` and `podman run` if the container was not started."""
_ENGINE_TIMEOUT_S = 30.0
_MIN_POLL_S, _MAX_POLL_S = 0.05, 1.0
_LOG_LINES = 5
_IMAGE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


class ContainerSettings(TypedDict, total=False):
    """The keyword arguments of `Container`."""

    port: int | None
    env_vars: Mapping[str, str] | None
    timeout_s: float


class Container:
    """A container of an environment image. It can be started again after it has ended.

    Args:
        image: the engine pulls it if it is not on this machine.
        port: the port on 127.0.0.1; by default the engine chooses a free one.
        env_vars: environment variables of the container. Their values are not in any command line.
        timeout_s: seconds from the start of the container until its server must be healthy.
    """

    def __init__(
        self,
        image: str,
        *,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        timeout_s: float = HEALTH_TIMEOUT_S,
    ) -> None:
        if not _IMAGE_PATTERN.fullmatch(image):
            raise ConfigError(f"{image!r} is not the name of a container image.")
        self.image = image
        self._port, self._env_vars, self._timeout_s = port, dict(env_vars or {}), timeout_s
        self._engine = self._name = self._url = ""
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._supervisor_exit: asyncio.Future[tuple[bytes, bytes]] | None = None
        """The output of the supervisor, once it was told to exit."""
        self._start_lock = asyncio.Lock()

    async def start(self) -> str:
        """Start the container unless it runs already, and return the URL of its server."""
        async with self._start_lock:
            if self._supervisor is not None and self._supervisor.poll() is None:
                return self._url
            await self.stop()
            self._launch()
            try:
                self._url = f"http://127.0.0.1:{await self._find_port()}"
                await self._wait_for_health()
            except BaseException:
                await self.stop()
                raise
            return self._url

    async def stop(self) -> None:
        """Remove the container. May be called twice."""
        if self._supervisor is not None:
            await self._remove_and_read_log()
            self._supervisor = self._supervisor_exit = None

    def _launch(self) -> None:
        self._engine = find_container_engine()
        self._name = f"ludus-{secrets.token_hex(6)}"
        variables = [part for name in self._env_vars for part in ("--env", name)]
        self._supervisor = subprocess.Popen(
            [
                *(sys.executable, "-I", _SUPERVISOR, str(os.getpid())),
                *(self._engine, self._name, "--label", CONTAINER_LABEL),
                *("--publish", f"127.0.0.1:{self._port or ''}:{SERVER_PORT}"),
                *variables,
                self.image,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self._env_vars},
            # Ctrl-C in the terminal reaches this process alone, which then stops the container.
            start_new_session=True,
        )

    async def _find_port(self) -> int:
        """Wait until the container has started, and ask the engine for its port on this machine."""
        command, delay = (self._engine, "port", self._name, f"{SERVER_PORT}/tcp"), _MIN_POLL_S
        while True:
            await self._raise_if_exited()
            with suppress(OSError, subprocess.SubprocessError):
                done = await asyncio.to_thread(
                    subprocess.run,
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_ENGINE_TIMEOUT_S,
                )
                match = re.search(rb":(\d+)\s*$", done.stdout, re.MULTILINE)
                if match and not done.returncode:
                    return int(match[1])
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_POLL_S)

    async def _wait_for_health(self) -> None:
        import aiohttp

        deadline, delay = time.monotonic() + self._timeout_s, _MIN_POLL_S
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while time.monotonic() < deadline:
                await self._raise_if_exited()
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with client.get(f"{self._url}/health") as reply:
                        if reply.status == 200:
                            return
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_POLL_S)
        log = await self._remove_and_read_log()
        raise ContainerFailed(
            f"The container of {self.image} did not become healthy within {self._timeout_s:g} s. "
            f"{_describe_log(log)}"
        )

    async def _raise_if_exited(self) -> None:
        assert self._supervisor is not None
        if (code := self._supervisor.poll()) is None:
            return
        log = await self._remove_and_read_log()
        if code == _ENGINE_ERROR_CODE:
            # The engine's own error, besides progress and usage hints.
            prefix = re.compile(rf"(?:{'|'.join(ENGINES)}|Error): ")
            lines = [line.strip() for line in log.splitlines() if line.strip()]
            line = next(filter(prefix.match, lines), lines[-1] if lines else "no reason given")
            reason = re.sub(r"(?<![.?!])$", ".", prefix.sub("", line).rstrip("."))
            raise ContainerFailed(
                f"{self._engine} could not run {self.image!r}: {reason} `ludus build` builds the "
                "image of an environment."
            )
        raise ContainerFailed(
            f"The container of {self.image} ended at its start, with exit code {code}. "
            f"{_describe_log(log)}"
        )

    async def _remove_and_read_log(self) -> str:
        """Let the supervisor remove the container, and return the container's last output."""
        assert self._supervisor is not None
        if self._supervisor_exit is None:
            # A byte besides the end of file, because a forked child may hold the pipe open.
            communicate = asyncio.to_thread(self._supervisor.communicate, b"\n")
            self._supervisor_exit = asyncio.ensure_future(communicate)
        # Shielded: the container is removed even if the caller is cancelled meanwhile.
        log, _ = await asyncio.shield(self._supervisor_exit)
        return log.decode(errors="replace")


def find_container_engine() -> str:
    """The name of the container engine on this machine."""
    override = os.environ.get(ENGINE_VARIABLE)
    for engine in (override,) if override else ENGINES:
        if shutil.which(engine):
            return engine
    if override:
        raise ContainerFailed(f"{ENGINE_VARIABLE} is {override!r}, which is not installed.")
    raise ContainerFailed("There is no container engine on this machine: install Docker or Podman.")


def _describe_log(log: str) -> str:
    """A sentence with the last lines of a container's log."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"Its last output: {' | '.join(lines[-_LOG_LINES:]) or 'nothing'}"
