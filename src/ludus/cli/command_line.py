"""The command line as it was typed, for cards and training records."""

from __future__ import annotations

import shlex
import sys


def typed_command() -> str:
    """The command line without --token, which is a secret."""
    words = iter(sys.argv[1:])
    kept = ["ludus"]
    for word in words:
        if word == "--token":
            next(words, None)
        elif not word.startswith("--token="):
            kept.append(word)
    return shlex.join(kept)
