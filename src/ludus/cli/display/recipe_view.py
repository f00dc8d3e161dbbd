"""The display of a recipe: its stages above the progress of the current one, and its plan."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ludus.cli.command_line import join_command, typed_command
from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.formatting import (
    format_clock,
    format_count,
    format_dollars,
    format_estimate,
)
from ludus.cli.display.status import status_header
from ludus.cli.stage_commands import fill_defaults, stage_command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.recipe.fingerprint import RecipeState
    from ludus.recipe.plan import StagePlan
    from ludus.recipe.recipe_file import Recipe


class RecipeView:
    """Shows on stderr which stage runs, and on a terminal all stages above its progress."""

    def __init__(
        self,
        recipe: Recipe,
        outputs: Mapping[str, Path | None],
        selected: Sequence[str],
    ) -> None:
        self.ran: list[str] = []
        """Stages that this start has run to their end."""
        self.current: str | None = None
        """The stage that is running."""
        self._recipe, self._outputs = recipe, outputs
        self._names = list(selected)
        self._marks: dict[str, str] = {}
        self._started_at = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(status_header(self.render))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def skip(self, plan: StagePlan) -> None:
        self._marks[plan.stage.name] = ""
        self._print(f"{self._position(plan)}: up to date", "dim")

    def start(self, plan: StagePlan) -> None:
        self.current, self._started_at = plan.stage.name, time.monotonic()
        arguments = stage_command(plan.stage).arguments(plan.stage, self._outputs)
        self._print(f"{self._position(plan)}: {plan.reason}", "bold")
        self._print(f"  {join_command(arguments)}", "dim")

    def set_aside(self, plan: StagePlan, kept_in: Path) -> None:
        self._print(f"  the previous result is kept in {kept_in}", "yellow")

    def finish(self, plan: StagePlan, seconds: float) -> None:
        self.ran.append(plan.stage.name)
        self._marks[plan.stage.name] = format_clock(seconds)
        self.current = None

    def print_stopped(self) -> None:
        """Print in which stage the recipe was stopped, and the command that resumes it."""
        self._print(f"Stopped in [{self.current}]; `{typed_command()}` resumes it.", "yellow")

    def render(self) -> RenderableType:
        """All stages in one line: done, running, to do."""
        from rich.text import Text

        ascii_only = console(stderr=True).options.ascii_only
        done, running, waiting = ("+", ">", ".") if ascii_only else ("✓", "▸", "·")
        line = Text(f"{self._recipe.name}  ", style="bold", overflow="ellipsis", no_wrap=True)
        for name in self._names:
            if name == self.current:
                clock = format_clock(time.monotonic() - self._started_at)
                line.append(f"{running} {name} {clock}   ", "bold cyan")
            elif name in self._marks:
                line.append(f"{done} {name} {self._marks[name]}".rstrip() + "   ", "green")
            else:
                line.append(f"{waiting} {name}   ", "dim")
        return line

    def _position(self, plan: StagePlan) -> str:
        number = self._names.index(plan.stage.name) + 1
        return f"[{number}/{len(self._names)}] {plan.stage.name}"

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        console(stderr=True).print(Text(escape_control_chars(text), style=style))


def print_plan(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    state: RecipeState,
    plans: Sequence[StagePlan],
    *,
    warnings: Sequence[str] = (),
) -> None:
    """Print what would run and why, with estimates, warnings and the commands."""
    from rich.table import Table
    from rich.text import Text

    from ludus.recipe.estimate import Estimator, detect_device, probe_episodes

    out = console()
    estimator = Estimator(probe_episodes, detect_device())
    estimates = {stage.name: estimator.estimate(fill_defaults(stage)) for stage in recipe.stages}
    table = Table(box=None, pad_edge=False)
    for name in ("Stage", "Time", "Tokens", "Cost", "Status"):
        table.add_column(name, no_wrap=name != "Status", overflow="fold")
    for plan in plans:
        estimate, record = estimates[plan.stage.name], state.stages.get(plan.stage.name)
        if not plan.runs and record is not None:
            table.add_row(plan.stage.name, format_clock(record.seconds), "", "", Text("up to date"))
            continue
        cells = [
            format_estimate(estimate.seconds),
            f"~{format_count(estimate.tokens)}" if estimate.tokens else "",
            f"~{format_dollars(estimate.cost)}" if estimate.cost is not None else "",
        ]
        status = escape_control_chars(plan.reason)
        table.add_row(plan.stage.name, *cells, Text(status, style="cyan"))
    out.print(table)
    running = [plan.stage for plan in plans if plan.runs]
    seconds = sum(estimates[stage.name].seconds for stage in running)
    costs = [cost for stage in running if (cost := estimates[stage.name].cost) is not None]
    total = f"{format_estimate(seconds)} in all" if running else "Nothing to do"
    total += f", ~{format_dollars(sum(costs))}" if costs else ""
    out.print(Text(f"{total}; results in {recipe.output_dir}"), soft_wrap=True)
    planned = [warning for stage in running for warning in estimates[stage.name].warnings]
    for warning in (*warnings, *planned):
        out.print(Text(escape_control_chars(warning), style="yellow"), soft_wrap=True)
    for stage in running:
        command = join_command(stage_command(stage).arguments(stage, outputs))
        out.print(Text(f"  {escape_control_chars(command)}", style="dim"), soft_wrap=True)
