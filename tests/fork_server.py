"""A process that forks for every `ludus` command of the tests, to save the start of Python.

Third-party modules are imported once, before the fork. Ludus itself is imported in each fork, so
that a missing import in a command still shows. Most modules do not read the environment on import,
and all commands share them; commands that load models have a server per environment. Commands that
are killed, interrupted or need a terminal are started as processes of their own
(`ludus_process.start_ludus`, `run_on_terminal`).
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
        *("aiohttp", "asyncio", "cyclopts", "docstring_parser", "genai_prices", "jsonschema"),
        *("pydantic", "python_socks.async_.asyncio.v2", "rich.console", "rich.live"),
        *("rich.progress", "rich.table", "uvloop", "websockets.asyncio.client", "xxhash"),
    ),
    "training": (
        *("accelerate", "cyclopts", "datasets", "jinja2", "matplotlib.figure", "peft", "pydantic"),
        *("regex", "rich.console", "torch", "transformers:AutoModelForCausalLM", "yaml"),
        *("transformers:Trainer", "trl:DPOTrainer", "trl:GRPOTrainer", "trl:SFTTrainer"),
    ),
}
"""Modules to preload, and names that lazy packages import on access: for most commands, and for
those that load a model."""


def serve_forks(requests: socket.socket) -> dict[str, Any]:
    """Fork for every request and report the fork's pid and exit code; return in the fork.

    A request carries the command as JSON and three files: stdin, stdout and stderr.
    """
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            command: dict[str, Any] = json.loads(request)
            return command
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    for entry in LOADED[sys.argv[1]]:
        module, _, name = entry.partition(":")
        imported = importlib.import_module(module)
        if name:
            getattr(imported, name)
    # Ctrl-C is for the commands; this process ends when the socket closes.
    sigint_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    command = serve_forks(socket.socket(fileno=int(sys.argv[2])))
    signal.signal(signal.SIGINT, sigint_handler)
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    # As with `python -m`: the folder, PYTHONPATH, then installed packages.
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [command["cwd"], *added, *sys.path[1:]]
    importlib.invalidate_caches()
    sys.argv = ["ludus", *command["arguments"]]
    runpy.run_module("ludus", run_name="__main__", alter_sys=True)
