"""`ludus curate`: episodes -> rows worth training on."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli.command_line import typed_command
from ludus.cli.run_lookup import resolve_run_path

if TYPE_CHECKING:
    from ludus.curation import CurateReport


class RowKind(StrEnum):
    SFT = "sft"
    DPO = "dpo"
    EPISODES = "episodes"
    OPENENV = "openenv"
    NEMO_GYM = "nemo-gym"
    NEMO_GYM_INPUT = "nemo-gym-input"


class FileFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    DATASETS = "datasets"


class Pairing(StrEnum):
    BEST = "best"
    ALL = "all"


def curate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            parser=resolve_run_path,
            help="Run folders, their names below runs/, `last`, or episodes.jsonl files.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output-dir", "-o", metavar="OUT", help="Where the data set goes.")
    ],
    to: Annotated[RowKind, typer.Option(help="What a row is.")] = RowKind.SFT,
    where: Annotated[
        str | None,
        typer.Option(help="A condition in SQL: \"reward >= 0.8 and environment = 'wordle'\"."),
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="The least reward.")] = None,
    min_turns: Annotated[int | None, typer.Option(min=0, help="The fewest replies.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=0, help="The most replies.")] = None,
    solve_rate: Annotated[
        str | None,
        typer.Option(metavar="LOW..HIGH", help="Tasks that are solved so often: 0.1..0.9."),
    ] = None,
    solved_at: Annotated[float, typer.Option(help="The reward from which a task is solved.")] = 1.0,
    top_fraction: Annotated[
        float | None, typer.Option(help="The best part of each environment's episodes.")
    ] = None,
    best_of_group: Annotated[
        bool, typer.Option("--best-of-group", help="The best attempt at each task.")
    ] = False,
    unscored: Annotated[
        bool, typer.Option("--unscored", help="Keep episodes that have no reward.")
    ] = False,
    dedupe: Annotated[
        bool,
        typer.Option(
            "--dedupe/--no-dedupe", help="Leave out exact copies, of episodes or of pairs."
        ),
    ] = True,
    near_prompts: Annotated[
        float | None,
        typer.Option(metavar="LIKENESS", help="Leave out tasks that are near copies: 0.8."),
    ] = None,
    near_completions: Annotated[
        float | None,
        typer.Option(metavar="LIKENESS", help="Leave out attempts that say nearly the same: 0.9."),
    ] = None,
    across_tasks: Annotated[
        bool,
        typer.Option("--across-tasks", help="Compare what was said at all tasks, not at one."),
    ] = False,
    pairs: Annotated[
        Pairing, typer.Option(help="Best against worst, or all pairs.")
    ] = Pairing.BEST,
    min_margin: Annotated[float, typer.Option(help="The least difference in a pair.")] = 0.1,
    test: Annotated[
        float | None, typer.Option(help="The part of the tasks to test on: 0.1.")
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="A run or data set whose tasks must not be in this one."),
    ] = None,
    likeness: Annotated[
        float, typer.Option(help="From here on two prompts are near copies, in --test, --held-out.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="Which tasks are to test on.")] = 0,
    system: Annotated[
        bool, typer.Option("--system/--no-system", help="Keep the system prompt in the rows.")
    ] = True,
    tool_results: Annotated[
        bool, typer.Option("--tool-results/--no-tool-results", help="What tools answered.")
    ] = True,
    reasoning: Annotated[
        bool, typer.Option("--reasoning/--no-reasoning", help="What the model thought.")
    ] = True,
    last_turn: Annotated[
        bool, typer.Option("--last-turn", help="Learn the last turn only: prompt and completion.")
    ] = False,
    render: Annotated[
        str | None,
        typer.Option(
            help="Write calls as text: qwen3, qwen2.5, qwen3.5, llama3, glm4, hermes, smollm."
        ),
    ] = None,
    student: Annotated[
        str | None, typer.Option(help="A model, to measure rows in its tokens.")
    ] = None,
    format: Annotated[
        FileFormat, typer.Option(help="How rows lie on the disk.")
    ] = FileFormat.JSONL,
    explain: Annotated[
        bool, typer.Option("--explain", help="Write left_out.jsonl: a reason for each episode.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the data set that is there.")
    ] = False,
    push_to_hub: Annotated[
        str | None, typer.Option("--push-to-hub", "-H", help="USER/NAME of a data set.")
    ] = None,
    private: Annotated[bool, typer.Option(help="Make that data set a private one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Choose episodes and write them as rows for SFT, DPO or another tool.

    Broken and unscored episodes are left out, and so are exact copies. What every step left out
    is shown, and stands in the card beside the rows.

    Examples:

    ludus curate runs/wordle --to sft --min-reward 0.8 --test 0.1 -o data/wordle

    ludus curate runs/a runs/b --to dpo --pairs all --min-margin 0.3 -o data/pairs
    """
    from ludus.cli.display.progress_bar import progress_bar
    from ludus.curation import CurateConfig
    from ludus.curation import curate as run_curation

    if push_to_hub is not None:
        from ludus.publish.hub_upload import check_login, check_repo_id

        check_repo_id(push_to_hub)
        check_login()
    config = CurateConfig(
        to=to.value,
        where=where,
        min_reward=min_reward,
        min_turns=min_turns,
        max_turns=max_turns,
        solve_rate=_parse_solve_rate(solve_rate),
        solved_at=solved_at,
        top_fraction=top_fraction,
        best_of_group=best_of_group,
        keep_unscored=unscored,
        system=system,
        tool_results=tool_results,
        reasoning=reasoning,
        last_turn=last_turn,
        tool_call_format=render,
        dedupe=dedupe,
        max_prompt_similarity=near_prompts,
        max_completion_similarity=near_completions,
        across_tasks=across_tasks,
        pairs=pairs.value,
        min_margin=min_margin,
        test_size=test,
        held_out=tuple(held_out or ()),
        similarity_threshold=likeness,
        seed=seed,
        format=format.value,
        student=student,
    )
    with progress_bar() as watch:
        report = run_curation(
            runs,
            out,
            config,
            overwrite=overwrite,
            explain=explain,
            location=push_to_hub,
            command=typed_command(),
            progress=watch,
        )
    if as_json:
        typer.echo(json.dumps({"folder": str(out), **report.as_json()}, allow_nan=False))
    else:
        _print_report(out, report)
    if push_to_hub is not None:
        again = typed_command() if overwrite else f"{typed_command()} --overwrite"
        _push_dataset(out, push_to_hub, private=private, retry=again, as_json=as_json)


def _parse_solve_rate(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low or 0), float(high or 1)
    except ValueError:
        raise typer.BadParameter(
            f"--solve-rate {text!r} is no band; write 0.1..0.9, or ..0.5, or 0.5.."
        ) from None


def _print_report(out: Path, report: CurateReport) -> None:
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import console, escape_control_chars
    from ludus.cli.display.formatting import plural

    steps = Table(box=None, pad_edge=False)
    for name, side in (("step", "left"), ("left out", "right"), ("left", "right"), ("", "left")):
        steps.add_column(name, justify="right" if side == "right" else "left", no_wrap=bool(name))
    steps.add_row("episodes", "", f"{report.episodes:,}", "")
    for step in report.steps:
        style = "" if step.removed else "dim"
        cells = (
            step.reason,
            f"{step.removed:,}",
            f"{step.left:,}",
            escape_control_chars(step.detail),
        )
        steps.add_row(*(Text(cell, style=style) for cell in cells))
    shown = console()
    shown.print(steps)
    for place in report.unreadable:
        shown.print(Text(f"unreadable: {place}", style="yellow"), soft_wrap=True)
    for side, rows in report.rows.items():
        tasks = plural(report.tasks[side], "task")
        shown.print(f"{side}: {plural(rows, 'row')} of {tasks}", soft_wrap=True)
    if report.families:
        shown.print(f"{plural(report.families, 'task')} went along with a near copy of theirs")
    if report.lengths is not None:
        shown.print(Text(str(report.lengths)), soft_wrap=True)
    shown.print(Text(f"data set: {out}"), soft_wrap=True)


def _push_dataset(out: Path, repo_id: str, *, private: bool, retry: str, as_json: bool) -> None:
    from ludus.curation.output_dir import DATASET_FILES
    from ludus.publish.hub_upload import push_folder

    files = sorted(
        str(file.relative_to(out))
        for file in out.rglob("*")
        if file.is_file() and file.relative_to(out).parts[0] in DATASET_FILES
    )
    url = push_folder(out, repo_id, private=private, files=files, retry_command=retry)
    typer.echo(json.dumps({"event": "pushed", "url": url}) if as_json else f"Data set: {url}")
