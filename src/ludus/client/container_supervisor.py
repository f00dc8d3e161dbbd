"""Runs one container for its parent process, and removes it when that process ends.

    python container_supervisor.py PARENT_PID ENGINE NAME RUN_ARGUMENT...

It ends the container when a byte or the end of file arrives on stdin, when the parent is gone (also
after kill -9; a forked child may keep stdin open), or on SIGTERM. At its end, it writes the last
output of the container to stdout; it exits with the code of the engine's client. It is a separate
process, started as a script with nothing but the standard library, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

PARENT_POLL_S = 1.0
CLIENT_TIMEOUT_S = 2.0
LOG_TAIL_BYTES = 4096


def main() -> int:
    parent, engine, name, *arguments = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    client = subprocess.Popen(
        [engine, "run", "--rm", "--name", name, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert client.stdout is not None
    stdin, output = sys.stdin.fileno(), client.stdout.fileno()
    log = b""
    try:
        while True:
            readable, _, _ = select.select([stdin, output], [], [], PARENT_POLL_S)
            if output in readable:
                chunk = os.read(output, 65536)
                if not chunk:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        client.wait(CLIENT_TIMEOUT_S)
                    break
                log = (log + chunk)[-LOG_TAIL_BYTES:]
            if stdin in readable or os.getppid() != int(parent):
                break
    finally:
        remove_container(engine, name, client)
        with contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), log)
    return client.returncode


def remove_container(engine: str, name: str, client: subprocess.Popen[bytes]) -> None:
    """Remove the container, even if the engine's client is still starting it."""
    if client.poll() is None:
        _force_remove(engine, name)
    try:
        client.communicate(timeout=CLIENT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # It was still pulling the image, and would create the container after that.
        client.kill()
        client.communicate()
        _force_remove(engine, name)


def _force_remove(engine: str, name: str) -> None:
    subprocess.run(
        [engine, "rm", "--force", "--volumes", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    sys.exit(main())
