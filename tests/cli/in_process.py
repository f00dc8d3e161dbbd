"""Run commands of the program in this process, which has imported what they need."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from unittest.mock import patch

from cyclopts import CycloptsError

from ludus.cli.main import build_app, expand_aliases


@dataclass
class Result:
    """What a command printed, and how it ended."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@dataclass
class Runner:
    """Runs commands with these environment variables."""

    env: Mapping[str, str] = field(default_factory=dict)

    def invoke(self, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Result:
        out, err, code = io.StringIO(), io.StringIO(), 0
        exception: BaseException | None = None
        with (
            patch.dict(os.environ, {**self.env, **(env or {})}),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                build_app(arguments)(expand_aliases(arguments))
            except SystemExit as end:
                code = int(end.code or 0)
            except CycloptsError as error:
                exception, code = error, 2
                print(error, file=err)
            except (Exception, KeyboardInterrupt) as error:
                exception, code = error, 1
        return Result(code, out.getvalue(), err.getvalue(), exception)
