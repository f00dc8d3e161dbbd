"""Decide which stages of a recipe run, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.data.config import describe_changes
from ludus.errors import ConfigError, did_you_mean
from ludus.recipe.fingerprint import RecipeState, StageRecord, changed_keys, fingerprint_stage
from ludus.recipe.recipe_file import Recipe, Stage

RESUMES = "resumes"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Whether a stage runs."""

    stage: Stage
    output: Path | None
    """Its folder or file; None for a stage that leaves none, such as an upload."""
    record: StageRecord
    """What it is run with now."""
    reason: str
    """Why it runs, such as `input changed: collect`; empty if its result is up to date."""
    replaces: bool = False
    """Whether an earlier result has to be set aside, because it is of other inputs or code."""

    @property
    def runs(self) -> bool:
        return bool(self.reason)


def plan_stage(
    stage: Stage,
    outputs: Mapping[str, Path | None],
    state: RecipeState,
    code: Mapping[str, str] | None = None,
) -> StagePlan:
    """Compare what a stage was run with, and what it would be run with now.

    `code` has the digests of its code, by default those of now.
    """
    output, before = outputs[stage.name], state.stages.get(stage.name)
    record = fingerprint_stage(stage, outputs, state, code)

    def plan(reason: str, *, replaces: bool = False) -> StagePlan:
        return StagePlan(stage, output, record, reason, replaces)

    if before is None:
        return plan("new")
    if output is not None and not output.exists():
        return plan("result missing" if before.done else RESUMES)
    if before.command != record.command:
        return plan(f"command changed: {before.command} -> {record.command}", replaces=True)
    if inputs := changed_keys(before.inputs, record.inputs):
        return plan(f"input changed: {', '.join(inputs)}", replaces=True)
    if modules := changed_keys(before.code, record.code):
        return plan(f"code changed: {', '.join(modules)}", replaces=True)
    if changes := list(describe_changes(before.settings, record.settings)):
        return plan(f"settings changed: {', '.join(changes)}")
    return plan("" if before.done else RESUMES)


def plan_recipe(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    state: RecipeState,
    selected: Collection[str],
) -> list[StagePlan]:
    """Plan all selected stages in advance; those after one that runs will run, too."""
    plans: list[StagePlan] = []
    for stage in recipe.stages:
        if stage.name not in selected:
            continue
        plan = plan_stage(stage, outputs, state)
        running = {each.stage.name for each in plans if each.runs}
        if not plan.runs and (after := [name for name in stage.inputs if name in running]):
            plan = StagePlan(
                stage, plan.output, plan.record, f"input will change: {', '.join(after)}"
            )
        plans.append(plan)
    return plans


def select_stages(
    recipe: Recipe, *, start: str | None = None, only: Sequence[str] = ()
) -> list[str]:
    """The names of the stages from `start` on, or of those in `only`; by default all."""
    names = [stage.name for stage in recipe.stages]
    selected = [("only", name) for name in only]
    if start is not None:
        selected.append(("start", start))
    for argument, name in selected:
        if name not in names:
            hint = did_you_mean(name, names, f"Its stages: {', '.join(names)}.")
            raise ConfigError(f"`{argument}`: the recipe has no stage {name!r}. {hint}")
    if start is not None:
        names = names[names.index(start) :]
    return [name for name in names if not only or name in only]


def check_unselected_inputs(
    recipe: Recipe, outputs: Mapping[str, Path | None], selected: Collection[str]
) -> None:
    """Raise if a selected stage needs the result of one that is not selected and has none."""
    for stage in recipe.stages:
        for name in stage.inputs if stage.name in selected else ():
            output = outputs[name]
            if name not in selected and output is not None and not output.exists():
                raise ConfigError(
                    f"[{stage.name}] needs the result of [{name}], and there is no {output} yet. "
                    "Run that stage first."
                )
