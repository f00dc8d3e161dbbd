"""View of the training record of a model, for `ludus show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.formatting import format_change

if TYPE_CHECKING:
    from rich.console import Console


def print_training_record(out: Console, folder: Path) -> bool:
    """Print the training record of a model; False if its folder has none."""
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars
    from ludus.train.output.record import read_record

    training = read_record(folder)
    if training is None:
        return False
    out.print(escape_control_chars(f"{folder}  {training.kind} of {training.model}"), style="bold")
    metrics = training.metrics
    loss = reward = None
    if metrics is not None:
        loss = format_change(metrics.first_loss, metrics.last_loss)
        reward = format_change(metrics.first_reward, metrics.last_reward)
    data, environment = training.data, training.environment
    facts = {
        "data": f"{data.rows:,} rows of {data.path}" if data is not None else None,
        "environment": environment.spec if environment is not None else None,
        "steps": f"{metrics.steps:,}" if metrics is not None else "not finished",
        "loss": loss,
        "reward": reward,
        "command": training.command,
    }
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact is not None:
            table.add_row(Text(name, style="bold"), Text(escape_control_chars(fact)))
    out.print(table)
    env = environment.spec if environment is not None else "ENV"
    for line in (
        f"Collect:  ludus collect {env} --agent hf:{folder}",
        f"Evaluate: ludus eval {env} -c base=hf:{training.model} -c trained=hf:{folder}",
        *([f"Diagnose: ludus diagnose {folder}"] if training.kind == "grpo" else []),
    ):
        out.print(line, markup=False, soft_wrap=True)
    return True
