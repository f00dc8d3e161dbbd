"""Run the stages of a recipe, and record what each was run with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ludus.data.files import lock_dir
from ludus.errors import OtherSettings, RunError
from ludus.recipe.fingerprint import RecipeState, StageRecord, content_digest, stat_digest
from ludus.recipe.plan import StagePlan, plan_stage
from ludus.recipe.recipe_file import EARLIER_DIR, Recipe, Stage

StageFunction = Callable[[Stage], int]
"""Runs the command of a stage and returns its exit code."""


class RecipeProgress(Protocol):
    """Receives the progress of a recipe."""

    def skip(self, plan: StagePlan) -> None:
        """The result of this stage is up to date."""

    def start(self, plan: StagePlan) -> None:
        """This stage is about to run."""

    def set_aside(self, plan: StagePlan, kept_in: Path) -> None:
        """An earlier result of this stage was moved."""

    def finish(self, plan: StagePlan, seconds: float) -> None:
        """This stage is done."""


def run_recipe(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    plans: Sequence[StagePlan],
    run_stage: StageFunction,
    progress: RecipeProgress,
) -> int:
    """Run the planned stages that are not up to date; stop at the first that fails.

    Each is planned once more when its turn comes, because its inputs may have changed. Its code is
    recorded as it was at first: modules that were imported since stay as they were.

    Returns the exit code of the last command. The state is written before and after each stage:
    whenever this process is killed, the next call goes on with the same stage.
    """
    with lock_dir(recipe.output_dir):
        for planned in plans:
            state = RecipeState.load(recipe.output_dir)
            plan = plan_stage(planned.stage, outputs, state, planned.record.code)
            if not plan.runs:
                progress.skip(plan)
                continue
            progress.start(plan)
            if code := _run_planned(recipe, plan, run_stage, progress):
                return code
    return 0


def _run_planned(
    recipe: Recipe, plan: StagePlan, run_stage: StageFunction, progress: RecipeProgress
) -> int:
    name, folder, state = plan.stage.name, recipe.output_dir, RecipeState.load(recipe.output_dir)
    if plan.replaces:
        _set_aside(recipe, plan, progress)
    before, seconds = state.stages.get(name), 0.0
    if before is not None and not before.done and not plan.replaces:
        seconds = before.seconds
    state.with_record(name, plan.record).save(folder)
    started_at = time.monotonic()
    try:
        code = run_stage(plan.stage)
    except OtherSettings:
        _set_aside(recipe, plan, progress)
        code = run_stage(plan.stage)
    finally:
        seconds = round(seconds + time.monotonic() - started_at, 3)
        record = plan.record.model_copy(update={"seconds": seconds})
        state.with_record(name, record).save(folder)
    if code == 0:
        state.with_record(name, _complete(record, plan.output)).save(folder)
        progress.finish(plan, seconds)
    return code


def _complete(record: StageRecord, output: Path | None) -> StageRecord:
    digests = {}
    if output is not None:
        digests = {"output": content_digest(output), "output_stat": stat_digest(output)}
    return record.model_copy(update={"done": True, **digests})


def _set_aside(recipe: Recipe, plan: StagePlan, progress: RecipeProgress) -> None:
    """Move an earlier result of the stage, so that nothing that was paid for is lost."""
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
    progress.set_aside(plan, target)
