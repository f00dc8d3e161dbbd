"""Executes a command that is killed when its parent dies: `python launch.py PARENT COMMAND …`.

A server that ignores the end of its input would otherwise outlive a parent that was killed. The
setting survives `exec`, so that the server replaces this process. Linux only; elsewhere the command
is executed as it is.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent_pid):
            sys.exit(1)  # The parent died before the setting took effect.
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
