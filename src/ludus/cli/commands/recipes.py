"""`ludus run` and `ludus new`: run a recipe, or copy a built-in one."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.flags import command
from ludus.cli.recipe_stages import stage_command
from ludus.errors import ConfigError, LudusError, RunError, did_you_mean
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.recipe.recipe_file import Stage


@command
def run_command(
    recipe: Annotated[
        str,
        Option(metavar="RECIPE"),
        "TOML file, or the name of a built-in recipe.",
    ],
    *,
    dry_run: Annotated[
        bool,
        Option(name="dry_run"),
        "Print what would run, and why; run nothing.",
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
        common.output_option("runs/NAME"),
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
    from ludus.cli.display.recipe_view import RecipeView, print_ending, print_plan
    from ludus.cli.flags import name_flags
    from ludus.cli.recipe_stages import apply_defaults, check_inputs, check_options, check_recipe
    from ludus.recipe.fingerprint import RecipeState
    from ludus.recipe.recipe_file import read_recipe
    from ludus.recipe.runner import check_unselected_inputs, plan_recipe, run_recipe, select_stages

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
        print_plan(parsed, outputs, plans, warnings=missing_keys)
        return
    if missing_keys:
        raise ConfigError(missing_keys[0])
    view = RecipeView(outputs, selected)
    try:
        code = run_recipe(parsed, outputs, plans, lambda stage: _run_command(stage, outputs), view)
    except LudusError as error:
        where = f"[{view.current}] " if view.current else ""
        raise RunError(f"{where}{name_flags(str(error))}") from error
    if code:
        view.print_stopped()
        raise SystemExit(code)
    print_ending(parsed, outputs, selected, ran=view.ran)


@command
def new_command(
    recipe: Annotated[
        str | None,
        Option(metavar="RECIPE", default="list them"),
        "Name of a built-in recipe.",
    ] = None,
    *,
    out: Annotated[
        Path | None,
        Option(name="output", short="o", metavar="FILE", default="RECIPE.toml", parse=expand_path),
        "File to write.",
    ] = None,
) -> None:
    """Copy a built-in recipe, with its comments, to edit it; without RECIPE, list all.

    Example: ludus new chain-sum && ludus run chain-sum.toml --dry-run
    """
    from ludus.data.files import create_atomically
    from ludus.recipe.recipe_file import read_recipe, shipped_recipes

    recipes = shipped_recipes()
    if recipe is None:
        for name in recipes:
            print(f"{name:<14}{read_recipe(name).description}")
        return
    if recipe not in recipes:
        hint = did_you_mean(recipe, recipes, f"Built-in recipes: {', '.join(recipes)}.")
        raise ConfigError(f"There is no recipe {recipe!r} to copy. {hint}")
    file = out or Path(f"{recipe}.toml")
    try:
        is_new = create_atomically(file, recipes[recipe])
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error
    if not is_new:
        raise RunError(f"{file} exists already. Choose another file with --output.")
    print(f"Wrote {file}. Its plan: ludus run {file} --dry-run")


def _run_command(stage: Stage, outputs: Mapping[str, Path | None]) -> int:
    """Run the command of a stage in this process; return its exit code.

    One process for all stages: PyTorch is loaded once, and killing it kills the stage.
    """
    try:
        stage_command(stage).run(stage, outputs)
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        # The next stage has as much memory as in a new process. Models are held by reference
        # cycles, and glibc keeps what is freed below its mmap threshold: after SFT of 135 million
        # parameters 2.7 GB stay resident, of which `malloc_trim` returns 1.7.
        from ludus.policy.device import release_gpu_memory

        release_gpu_memory()
        if sys.platform == "linux":
            with suppress(AttributeError, OSError):  # Another C library, such as musl.
                ctypes.CDLL(None).malloc_trim(0)
    return 0
