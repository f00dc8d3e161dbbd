"""A stand-in for Docker and Podman: a program of that name that runs real servers.

Like the real ones, it runs containers apart from its client: a killed client leaves its container
running. An image is a command line in a JSON file, which may contain {port}; a call is a line in a
log. `stand_in_engine` puts it on a PATH of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SERVE = (sys.executable, "-m", "ludus", "serve")


@dataclass(frozen=True)
class StandInEngine:
    """The engine's state, from the tests' side."""

    folder: Path
    path: str
    """The PATH on which the program is found, and nothing else."""

    @property
    def calls(self) -> list[list[str]]:
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add_image(self, name: str, *command: str) -> None:
        (self.folder / "images" / name.replace("/", "%")).write_text(json.dumps(command))

    def add_slow_pull(self, name: str) -> None:
        """Add an image whose pull does not end."""
        self.add_image(name, "{pull}")

    def serve(self, name: str, spec: str) -> None:
        """Add an image that serves this environment."""
        self.add_image(name, *SERVE, spec, "--host", "127.0.0.1", "--port", "{port}")

    def containers(self) -> dict[str, int]:
        """The containers with the ids of their processes."""
        running = {}
        for file in (self.folder / "containers").glob("*.json"):
            with suppress(FileNotFoundError):  # It was removed meanwhile.
                running[file.stem] = json.loads(file.read_text())["pid"]
        return running

    def wait_until_started(self) -> None:
        while not self.containers():
            time.sleep(0.02)

    def wait_for_call(self, command: str) -> None:
        while not any(call[0] == command for call in self.calls):
            time.sleep(0.02)

    def wait_until_removed(self) -> None:
        while self.containers():
            time.sleep(0.02)


def install_engine(folder: Path, name: str = "docker") -> StandInEngine:
    """Create the program in `folder`/bin, without images."""
    for each in ("bin", "images", "containers"):
        (folder / each).mkdir(parents=True)
    program = folder / "bin" / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S {__file__} {name} {folder} "$@"\n')
    program.chmod(0o755)
    return StandInEngine(folder, f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")


@contextmanager
def stand_in_engine(folder: Path, name: str = "docker") -> Iterator[StandInEngine]:
    """The engine, without images; at the end, what a failed test has left running is killed."""
    engine = install_engine(folder, name)
    yield engine
    for pid in engine.containers().values():
        os.killpg(pid, signal.SIGKILL)


def main(engine: str, folder: Path, arguments: Sequence[str]) -> int:
    with (folder / "calls.jsonl").open("a") as log:
        log.write(json.dumps(list(arguments)) + "\n")
    if (folder / "no_daemon").exists():
        print(f"{engine}: Cannot connect to the daemon. Is it running?", file=sys.stderr)
        return 1 if arguments[0] != "run" else 125
    match arguments:
        case ["version"]:
            return 0
        case ["image", "inspect", image]:
            return 0 if _image_file(folder, image).exists() else 1
        case ["run", "--rm", "--name", name, *options, image]:
            return _run(engine, folder, name, options, image)
        case ["port", name, _]:
            return _print_port(folder, name)
        case ["rm", "--force", "--volumes", name]:
            return _remove(folder, name)
        case ["build", "--tag", tag, context]:
            return _build(folder, tag, Path(context))
    print(f"{engine}: unknown command {arguments}", file=sys.stderr)
    return 125


def _image_file(folder: Path, image: str) -> Path:
    return folder / "images" / image.replace("/", "%")


def _container_file(folder: Path, name: str) -> Path:
    return folder / "containers" / f"{name}.json"


def _run(engine: str, folder: Path, name: str, options: Sequence[str], image: str) -> int:
    if not _image_file(folder, image).exists():
        print(f"Unable to find image '{image}' locally", file=sys.stderr)
        print(f"{engine}: Error response from daemon: pull access denied.", file=sys.stderr)
        return 125
    pairs = list(zip(options[::2], options[1::2], strict=True))
    (published,) = (value for option, value in pairs if option == "--publish")
    host, port, inner = published.split(":")
    assert (host, inner) == ("127.0.0.1", "8000")
    port = port or str(_free_port())
    command = json.loads(_image_file(folder, image).read_text())
    if command == ["{pull}"]:
        time.sleep(600)
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        container = subprocess.Popen(
            [part.replace("{port}", port) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_container_env(os.environ, [v for option, v in pairs if option == "--env"]),
        )
    draft = folder / f"{name}.draft"
    draft.write_text(json.dumps({"pid": container.pid, "port": port}))
    draft.rename(_container_file(folder, name))
    code = container.wait()
    sys.stdout.buffer.write(log.read_bytes())
    _container_file(folder, name).unlink(missing_ok=True)  # --rm
    return code if code >= 0 else 128 - code


def _container_env(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    kept = {"PATH", "PYTHONPATH", "HOME", "TMPDIR", "PYTHONHASHSEED", *names}
    return {name: value for name, value in environ.items() if name in kept}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _print_port(folder: Path, name: str) -> int:
    try:
        container = json.loads(_container_file(folder, name).read_text())
    except FileNotFoundError:
        print(f"Error: No such container: {name}", file=sys.stderr)
        return 1
    print(f"127.0.0.1:{container['port']}")
    return 0


def _remove(folder: Path, name: str) -> int:
    file = _container_file(folder, name)
    if not file.exists():
        return 1
    os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)
    file.unlink(missing_ok=True)
    return 0


def _build(folder: Path, tag: str, context: Path) -> int:
    """Make an image of a context: the command of its Dockerfile, on the sources in it."""
    lines = (context / "Dockerfile").read_text().splitlines()
    command = next(json.loads(line[4:]) for line in lines if line.startswith("CMD "))
    assert command[0] == "python", command
    words = [{"8000": "{port}", "0.0.0.0": "127.0.0.1"}.get(word, word) for word in command[1:]]
    source = str((context / "src").absolute())
    run = ["/usr/bin/env", f"PYTHONPATH={source}", sys.executable, *words]
    _image_file(folder, tag).write_text(json.dumps(run))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
