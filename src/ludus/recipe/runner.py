"""Run the stages of a recipe whose settings, inputs or code have changed, and record each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ludus.data.config import describe_changes
from ludus.data.files import lock_dir
from ludus.errors import ConfigError, OtherSettings, RunError, did_you_mean
from ludus.recipe.fingerprint import RecipeState, StageRecord, fingerprint_stage
from ludus.recipe.recipe_file import EARLIER_DIR, Recipe, Stage

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


def plan_stage(stage: Stage, outputs: Mapping[str, Path | None], state: RecipeState) -> StagePlan:
    """Decide whether to run a stage: compare its last fingerprint with the current one."""
    output, before = outputs[stage.name], state.stages.get(stage.name)
    record = fingerprint_stage(stage, outputs)

    def plan(reason: str, *, replaces: bool = False) -> StagePlan:
        return StagePlan(stage, output, record, reason, replaces)

    if before is None:
        return plan("new")
    if output is not None and not output.exists():
        return plan("result missing" if before.done else RESUMES)
    if before.command != record.command:
        return plan(f"command changed: {before.command} -> {record.command}", replaces=True)
    names = sorted({*before.inputs, *record.inputs})
    if inputs := [name for name in names if before.inputs.get(name) != record.inputs.get(name)]:
        return plan(f"input changed: {', '.join(inputs)}", replaces=True)
    if changes := list(describe_changes(before.settings, record.settings)):
        return plan(f"settings changed: {', '.join(changes)}")
    return plan("" if before.done else RESUMES)


def plan_recipe(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    state: RecipeState,
    selected: Collection[str],
) -> list[StagePlan]:
    """Plan in advance which stages to run; stages after one that runs will run, too."""
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
    """The stages to run: from `start` on, or those in `only`; by default all."""
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


StageFunction = Callable[[Stage], int]
"""Runs the command of a stage and returns its exit code."""
RecipeEvent = Literal["up to date", "started", "set aside", "finished"]
RecipeProgress = Callable[[RecipeEvent, StagePlan, str], None]
"""Called with a stage's event, and the new place of its earlier result or its duration."""


def run_recipe(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    plans: Sequence[StagePlan],
    run_stage: StageFunction,
    progress: RecipeProgress,
) -> int:
    """Run the planned stages that are not up to date; stop at the first that fails.

    Each is planned once more when its turn comes, because its inputs may have changed.

    Returns the exit code of the last command. The state is written before and after each stage:
    whenever this process is killed, the next call goes on with the same stage.
    """
    folder = recipe.output_dir
    with lock_dir(folder):
        for planned in plans:
            state, name = RecipeState.load(folder), planned.stage.name
            plan = plan_stage(planned.stage, outputs, state)
            if not plan.runs:
                progress("up to date", plan, "")
                continue
            progress("started", plan, "")
            if plan.replaces:
                _set_aside(recipe, plan, progress)
            before, record = state.stages.get(name), plan.record
            resumes = before is not None and not before.done and not plan.replaces
            seconds = before.seconds if before is not None and resumes else 0.0
            state.with_record(name, record).save(folder)
            started_at = time.monotonic()
            try:
                code = run_stage(plan.stage)
            except OtherSettings:
                _set_aside(recipe, plan, progress)
                code = run_stage(plan.stage)
            finally:
                seconds = round(seconds + time.monotonic() - started_at, 3)
                record = record.model_copy(update={"seconds": seconds})
                state.with_record(name, record).save(folder)
            if code:
                return code
            state.with_record(name, record.model_copy(update={"done": True})).save(folder)
            progress("finished", plan, f"{seconds:,.1f} s")
    return 0


def _set_aside(recipe: Recipe, plan: StagePlan, progress: RecipeProgress) -> None:
    """Move an earlier result of the stage aside, because it may have been expensive."""
    if plan.output is None or not plan.output.exists():
        return
    earlier, number = recipe.output_dir / EARLIER_DIR, 1
    while (target := earlier / f"{plan.stage.name}-{number}{plan.output.suffix}").exists():
        number += 1
    try:
        earlier.mkdir(exist_ok=True)
        plan.output.rename(target)
    except OSError as error:
        raise RunError(f"{plan.output} cannot be moved to {target}: {error.strerror}.") from error
    progress("set aside", plan, str(target))
