"""The command line as it was typed, for cards and training records."""

from __future__ import annotations

import shlex
import sys


def typed_command() -> str:
    """The command line without --token, which is a secret."""
    arguments = iter(sys.argv[1:])
    words = ["ludus"]
    for argument in arguments:
        if argument == "--token":
            next(arguments, None)
        elif not argument.startswith("--token="):
            words.append(argument)
    return shlex.join(words)
