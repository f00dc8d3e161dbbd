"""A process that forks for every command it is asked for: the `ludus` program without the wait.

What others made is loaded before the fork, and once; Ludus itself is loaded anew in each process,
so that what a command forgets to import is still missed. Nothing is loaded that reads the
environment or starts a thread when it is imported: a command may have another environment, and
only the thread that forks goes on in a fork. What a process shows that is killed, interrupted or
has a terminal is for `ludus_process.LUDUS` to start.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any

LOADED = {
    "light": (
        *("aiohttp", "asyncio", "docstring_parser", "genai_prices", "jsonschema", "pydantic"),
        *("python_socks.async_.asyncio.v2", "rich.console", "rich.live", "rich.progress"),
        *("rich.table", "typer", "uvloop", "websockets.asyncio.client", "xxhash", "zstandard"),
    ),
    "heavy": ("jinja2", "numpy", "pydantic", "regex", "rich.console", "torch", "typer", "yaml"),
}
"""What most commands build on, and what those do that have a model or a student."""


def asked(line: socket.socket) -> dict[str, Any]:
    """Answer with the forks' numbers and how they ended; only a fork comes back, with its command.

    A command comes with three files: what it reads, says and complains to.
    """
    while True:
        command, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not command:
            os._exit(0)
        fork = os.fork()
        if fork == 0:
            line.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            wanted: dict[str, Any] = json.loads(command)
            return wanted
        for file in files:
            os.close(file)
        line.send(str(fork).encode())
        line.send(str(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])).encode())


if __name__ == "__main__":
    for module in LOADED[sys.argv[1]]:
        importlib.import_module(module)
    # An interrupt is for the commands: this process goes when nobody is left to ask it.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    command = asked(socket.socket(fileno=int(sys.argv[2])))
    signal.signal(signal.SIGINT, interrupted)
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    # As `python -m` has it: the folder, what the environment adds, and what was installed.
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [command["cwd"], *added, *sys.path[1:]]
    importlib.invalidate_caches()
    sys.argv = ["ludus", *command["arguments"]]
    runpy.run_module("ludus", run_name="__main__", alter_sys=True)
