"""`ludus diagnose`: explain a GRPO run, and what to change."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli import common_options as common


def diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of a `ludus train grpo`.")],
    as_json: common.JsonObject = False,
) -> None:
    """Diagnose a GRPO run: whether it learned, what went wrong, and what to change.

    Example: ludus diagnose models/wordle-grpo
    """
    from ludus.cli.display.diagnosis_view import diagnosis_as_json, print_diagnosis
    from ludus.cli.flag_names import command_flags, name_flags
    from ludus.diagnose import read_run

    data = read_run(run)
    diagnosis = data.diagnose()
    # Advice names arguments of the training, not of this command.
    translate = partial(name_flags, flags=command_flags("train", "grpo"))
    if as_json:
        fields = diagnosis_as_json(diagnosis, translate)
        head = {"run": str(run), "planned": data.planned_steps, "finished": data.finished}
        typer.echo(json.dumps({**head, **fields}, allow_nan=False))
    else:
        print_diagnosis(data, diagnosis, translate)
