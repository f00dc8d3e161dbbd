"""`ludus curate`: select episodes and write them as training rows."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.run_lookup import resolve_run_path


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
            metavar="RUN",
            parser=resolve_run_path,
            help="Run folders, their names in runs/, `last`, or episodes.jsonl files.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output-dir", "-o", metavar="OUT", help="Folder for the data set.")
    ],
    to: Annotated[RowKind, typer.Option(help="Kind of rows to write.")] = RowKind.SFT,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            help="Keep episodes that match: \"reward >= 0.8 and environment = 'wordle'\".",
        ),
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="Minimum reward.")] = None,
    min_turns: Annotated[int | None, typer.Option(min=0, help="Minimum number of replies.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=0, help="Maximum number of replies.")] = None,
    solve_rate: Annotated[
        str | None,
        typer.Option(
            metavar="LOW..HIGH", help="Keep tasks whose solve rate lies in this range: 0.1..0.9."
        ),
    ] = None,
    solved_at: common.SolvedAt = 1.0,
    top_fraction: Annotated[
        float | None,
        typer.Option(help="Keep this fraction of each environment's episodes, best first: 0.25."),
    ] = None,
    best_of_group: Annotated[
        bool, typer.Option("--best-of-group", help="Keep the best episode of each task.")
    ] = False,
    keep_unscored: Annotated[
        bool, typer.Option("--keep-unscored", help="Keep episodes without a reward.")
    ] = False,
    dedupe: Annotated[
        bool | None,
        typer.Option(
            "--dedupe/--no-dedupe",
            help="Remove exact copies of episodes or pairs.",
            show_default="for sft and dpo",
        ),
    ] = None,
    max_prompt_similarity: Annotated[
        float | None,
        typer.Option(help="Remove tasks whose prompts are at least this similar: 0.8."),
    ] = None,
    max_completion_similarity: Annotated[
        float | None,
        typer.Option(
            help="Remove episodes of a task whose completions are at least this similar: 0.9."
        ),
    ] = None,
    across_tasks: Annotated[
        bool,
        typer.Option("--across-tasks", help="Compare completions across tasks, not within each."),
    ] = False,
    pairs: Annotated[
        Pairing, typer.Option(help="DPO pairs: best against worst of each task, or all pairs.")
    ] = Pairing.BEST,
    min_margin: Annotated[
        float, typer.Option(help="Minimum reward difference within a DPO pair.")
    ] = 0.1,
    test_size: Annotated[
        float | None,
        typer.Option(help="Fraction of the tasks for the test split: 0.1, of 100 tasks 10."),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="Run or data set whose tasks are removed from this one; repeatable."),
    ] = None,
    similarity_threshold: Annotated[
        float,
        typer.Option(
            help="Similarity from which on prompts are near copies, for --test-size and --held-out."
        ),
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="Random seed of the test split.")] = 0,
    system: Annotated[
        bool, typer.Option("--system/--no-system", help="Keep the system prompt in the rows.")
    ] = True,
    tool_results: Annotated[
        bool,
        typer.Option("--tool-results/--no-tool-results", help="Keep tool results in the rows."),
    ] = True,
    reasoning: Annotated[
        bool, typer.Option("--reasoning/--no-reasoning", help="Keep reasoning in the rows.")
    ] = True,
    last_turn: Annotated[
        bool,
        typer.Option("--last-turn", help="Train on the last turn only: prompt and completion."),
    ] = False,
    tool_call_format: Annotated[
        str | None,
        typer.Option(
            help="Write tool calls as text: qwen3, qwen2.5, qwen3.5, llama3, glm4, hermes, smollm."
        ),
    ] = None,
    student: Annotated[
        str | None, typer.Option(help="Model whose tokenizer measures the length of the rows.")
    ] = None,
    format: Annotated[FileFormat, typer.Option(help="File format.")] = FileFormat.JSONL,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Write left_out.jsonl with the reason for each removed episode."
        ),
    ] = False,
    overwrite: common.Overwrite = False,
    push_to_hub: common.PushDataset = None,
    private: common.Private = False,
    as_json: common.JsonObject = False,
) -> None:
    """Select episodes and write them as rows for SFT, DPO or another tool.

    Broken and unscored episodes and exact copies are removed. The report, and the data set's card,
    say how many episodes each step removed.

    Examples:

    ludus curate runs/wordle --to sft --min-reward 0.8 --test-size 0.1 -o data/wordle

    ludus curate runs/a runs/b --to dpo --pairs all --min-margin 0.3 -o data/pairs
    """
    from ludus.cli.display.curate_report import print_curate_report
    from ludus.cli.display.status import status_callback
    from ludus.curation import CurateConfig, pipeline

    if push_to_hub is not None:
        from ludus.publish.hub_upload import check_login, check_upload_target

        check_upload_target(push_to_hub)
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
        keep_unscored=keep_unscored,
        system=system,
        tool_results=tool_results,
        reasoning=reasoning,
        last_turn=last_turn,
        tool_call_format=tool_call_format,
        dedupe=dedupe,
        max_prompt_similarity=max_prompt_similarity,
        max_completion_similarity=max_completion_similarity,
        across_tasks=across_tasks,
        pairs=pairs.value,
        min_margin=min_margin,
        test_size=test_size,
        held_out=tuple(held_out or ()),
        similarity_threshold=similarity_threshold,
        seed=seed,
        format=format.value,
        student=student,
    )
    end_if_checking()
    with status_callback() as progress:
        report = pipeline.curate(
            runs,
            out,
            config,
            overwrite=overwrite,
            explain=explain,
            location=push_to_hub,
            command=typed_command(),
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps({"folder": str(out), **report.as_json()}, allow_nan=False))
    else:
        print_curate_report(out, report)
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
            f"--solve-rate {text!r} is not a range; write 0.1..0.9, ..0.5 or 0.5.."
        ) from None


def _push_dataset(out: Path, repo_id: str, *, private: bool, retry: str, as_json: bool) -> None:
    from ludus.cli.hub_uploads import push_dataset

    url = push_dataset(out, repo_id, private=private, retry_command=retry)
    typer.echo(json.dumps({"event": "pushed", "url": url}) if as_json else f"Data set: {url}")
