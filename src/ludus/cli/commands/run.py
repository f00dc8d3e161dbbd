"""`ludus run`: run the stages of a recipe that are not up to date."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli.program import command
from ludus.cli.stage_commands import stage_command
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.recipe.recipe_file import Stage


@command
def run(
    recipe: Annotated[
        str,
        Option(metavar="RECIPE"),
        "TOML file, or the name of a built-in recipe.",
    ],
    *,
    dry_run: Annotated[
        bool,
        Option(name="dry_run"),
        "Print what would run, with estimates of time, tokens and cost; run nothing.",
    ] = False,
    start: Annotated[
        str | None,
        Option(name="from", metavar="STAGE"),
        "Skip the stages before this one; use their results.",
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(metavar="STAGE"),
        "Run only this stage; repeatable.",
    ] = None,
    overrides: Annotated[
        list[str] | None,
        Option(name="set", metavar="STAGE.KEY=VALUE"),
        "Replace a value of the recipe; repeatable.",
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            "Output",
            name="output_dir",
            short="o",
            metavar="PATH",
            parse=expand_path,
            default="runs/NAME",
        ),
        "Folder for all results.",
    ] = None,
) -> None:
    """Run the stages of a recipe, each only if its settings, inputs or code have changed.

    Run the same command again after Ctrl-C or a crash to resume. A result that has to be
    replaced is moved to OUT/earlier.

    Examples:

    ludus run quickstart

    ludus run chain-sum --dry-run

    ludus run my-recipe.toml --set grpo.steps=50 --from grpo
    """
    from ludus.cli.display.recipe_ending import print_ending
    from ludus.cli.display.recipe_view import RecipeView, print_plan
    from ludus.cli.program import name_flags
    from ludus.cli.recipe_checks import apply_defaults, check_options, check_recipe
    from ludus.cli.recipe_inputs import check_inputs
    from ludus.errors import ConfigError, LudusError, RunError
    from ludus.recipe.fingerprint import RecipeState
    from ludus.recipe.plan import check_unselected_inputs, plan_recipe, select_stages
    from ludus.recipe.recipe_file import read_recipe
    from ludus.recipe.runner import run_recipe

    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError(
            "`ludus run` runs in one process. Start the training stages with accelerate or "
            "torchrun themselves: --dry-run prints their commands."
        )
    parsed = apply_defaults(read_recipe(recipe, overrides=overrides or (), output_dir=out))
    outputs = check_recipe(parsed)
    missing = check_options(parsed, outputs)
    selected = select_stages(parsed, start=start, only=only or ())
    check_unselected_inputs(parsed, outputs, selected)
    state = RecipeState.load(parsed.output_dir)
    plans = plan_recipe(parsed, outputs, state, selected)
    check_inputs(plan.stage for plan in plans if plan.runs)
    missing_keys = [
        missing[plan.stage.name] for plan in plans if plan.runs and plan.stage.name in missing
    ]
    if dry_run:
        print_plan(parsed, outputs, state, plans, warnings=missing_keys)
        return
    if missing_keys:
        raise ConfigError(missing_keys[0])
    with RecipeView(parsed, outputs, selected) as view:
        try:
            code = run_recipe(
                parsed, outputs, plans, lambda stage: _run_command(stage, outputs), view
            )
        except LudusError as error:
            where = f"[{view.current}] " if view.current else ""
            raise RunError(f"{where}{name_flags(str(error))}") from error
    if code:
        view.print_stopped()
        raise SystemExit(code)
    print_ending(parsed, outputs, selected, ran=view.ran)


def _run_command(stage: Stage, outputs: Mapping[str, Path | None]) -> int:
    """Run the command of a stage in this process; return its exit code.

    One process for all stages: PyTorch is loaded once, and killing it kills the stage.
    """
    try:
        stage_command(stage).run(stage, outputs)
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        _free_memory()
    return 0


def _free_memory() -> None:
    """Return the memory of a stage, so that the next one has as much as in a process of its own.

    Models are held by reference cycles, and glibc keeps what is freed below its mmap threshold.
    After SFT of 135 million parameters 2.7 GB stay resident, of which `malloc_trim` returns 1.7.
    """
    from ludus.policy.device import release_gpu_memory

    release_gpu_memory()
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # Another C library, such as musl.
            ctypes.CDLL(None).malloc_trim(0)
