"""`ludus diagnose`: explain a GRPO run, and what to change."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

from ludus.cli import common
from ludus.cli.program import command
from ludus.options import Option, expand_path


@command
def diagnose(
    run: Annotated[Path, Option(parse=expand_path), "Folder of a `ludus train grpo`."],
    *,
    as_json: common.JsonObject = False,
) -> None:
    """Diagnose a GRPO run: whether it learned, what went wrong, and what to change.

    Example: ludus diagnose models/wordle-grpo
    """
    from ludus.cli.display.diagnosis_view import diagnosis_as_json, print_diagnosis
    from ludus.cli.program import name_command_flags
    from ludus.diagnose import read_run

    data = read_run(run)
    diagnosis = data.diagnose()
    # Advice names arguments of the training, not of this command.
    translate = partial(name_command_flags, command=("train", "grpo"))
    if as_json:
        fields = diagnosis_as_json(diagnosis, translate)
        head = {"run": str(run), "planned": data.planned_steps, "finished": data.finished}
        print(json.dumps({**head, **fields}, allow_nan=False))
    else:
        print_diagnosis(data, diagnosis, translate)
