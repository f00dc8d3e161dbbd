"""What `ludus run` prints: the plan of a recipe, which stage runs, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.command_line import join_command, typed_command
from ludus.cli.display.console import print_text
from ludus.cli.recipe_stages import stage_command

if TYPE_CHECKING:
    from ludus.recipe.recipe_file import Recipe
    from ludus.recipe.runner import RecipeEvent, StagePlan


class RecipeView:
    """Prints on stderr which stage runs, and why."""

    def __init__(self, outputs: Mapping[str, Path | None], selected: Sequence[str]) -> None:
        self.ran: list[str] = []
        """Stages that this start has run to their end."""
        self.current: str | None = None
        """The stage that is running."""
        self._outputs, self._names = outputs, list(selected)

    def __call__(self, event: RecipeEvent, plan: StagePlan, detail: str) -> None:
        name = plan.stage.name
        position = f"[{self._names.index(name) + 1}/{len(self._names)}] {name}"
        if event == "up to date":
            print_text(f"{position}: up to date", "dim", stderr=True)
        elif event == "started":
            self.current = name
            arguments = stage_command(plan.stage).arguments(plan.stage, self._outputs)
            print_text(f"{position}: {plan.reason}", "bold", stderr=True)
            print_text(f"  {join_command(arguments)}", "dim", stderr=True)
        elif event == "set aside":
            print_text(f"  the previous result is kept in {detail}", "yellow", stderr=True)
        else:
            self.ran.append(name)
            self.current = None
            print_text(f"  {name} took {detail}", "dim", stderr=True)

    def print_stopped(self) -> None:
        """Print in which stage the recipe was stopped, and the command that resumes it."""
        text = f"Stopped in [{self.current}]; `{typed_command()}` resumes it."
        print_text(text, "yellow", stderr=True)


def print_plan(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    plans: Sequence[StagePlan],
    *,
    warnings: Sequence[str] = (),
) -> None:
    """Print which stages of a recipe run and why, their commands, and missing inputs."""
    for plan in plans:
        print_text(f"{plan.stage.name}: {plan.reason or 'up to date'}", "bold")
        if plan.runs:
            arguments = stage_command(plan.stage).arguments(plan.stage, outputs)
            print_text(f"  {join_command(arguments)}", "dim")
    nothing = "" if any(plan.runs for plan in plans) else "Nothing to do; "
    print_text(f"{nothing}results in {recipe.output_dir}")
    for warning in warnings:
        print_text(warning, "yellow")


def print_ending(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    selected: Sequence[str],
    *,
    ran: Sequence[str],
) -> None:
    """Print a recipe's last evaluation, unless it ran just now, its reports and next steps."""
    from ludus.cli.display.eval_table import print_stored_evaluation
    from ludus.recipe.recipe_file import substitute

    stages = [stage for stage in recipe.stages if stage.name in selected]
    evaluations = [stage.name for stage in stages if stage.command == "eval"]
    if evaluations and evaluations[-1] not in ran:
        folder = outputs[evaluations[-1]]
        assert folder is not None
        print_stored_evaluation(folder)
    for stage in stages:
        if stage.command == "report":
            print_text(f"\nReport: {outputs[stage.name]}", "bold")
    if recipe.next_commands:
        folders = {name: str(path) for name, path in outputs.items() if path is not None}
        print_text("\nTo go further:", "bold")
        for command in recipe.next_commands:
            print_text(f"  {substitute(command, folders)}")
