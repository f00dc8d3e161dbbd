"""`ludus eval`: candidates on the same held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as given
from ludus.cli.command_line import typed_command
from ludus.cli.common_options import expand_user_path, task_arguments, template_kwargs
from ludus.cli.display.formatting import parse_duration
from ludus.errors import LudusError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ludus.evaluation import Candidate, Evaluation
    from ludus.evaluation.config import EvalConfig
    from ludus.evaluation.table import ResultTable
    from ludus.rollout.callbacks import CollectProgress

_COLUMN_PADDING = 3
_LABEL_COLUMN = "Candidate"


def evaluate(
    environment: given.Env,
    candidate: Annotated[
        list[str],
        typer.Option(
            "--candidate",
            "-c",
            metavar="[LABEL=]WHO",
            help="oracle, random, openai:MODEL, anthropic:MODEL, hf:PATH or smollm2; again for "
            "each. The first is the base.",
        ),
    ],
    num_episodes: Annotated[
        int | None,
        typer.Option(
            "--num-episodes",
            "-n",
            min=1,
            help="How many episodes each plays.",
            show_default="50, or all of --tasks",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which tasks: another than in collect.")] = 999,
    group_size: given.GroupSize = 1,
    dataset_config: given.DatasetConfig = None,
    task: given.Task = None,
    tasks: given.Tasks = None,
    not_in: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            parser=expand_user_path,
            help="A data set or run: tasks that ask what it asks do not count.",
        ),
    ] = None,
    solved_at: Annotated[float, typer.Option(help="The reward from which a task is solved.")] = 1.0,
    base_url: given.BaseUrl = None,
    token: given.Token = None,
    llm_endpoint: Annotated[
        str | None, typer.Option(help="For openai: a server with OpenAI's chat API.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, help="Of models.", show_default="0 for local models, else the model's own"
        ),
    ] = None,
    thinking: given.Thinking = None,
    chat_template_kwargs: given.ChatTemplateKwargs = None,
    device: given.Device = None,
    dtype: given.Dtype = None,
    system_prompt: given.SystemPrompt = None,
    max_turns: given.MaxTurns = 20,
    max_tokens: given.MaxTokens = 512,
    max_episode_tokens: given.MaxEpisodeTokens = None,
    concurrency: given.Concurrency = 64,
    episode_timeout: given.EpisodeTimeout = "1h",
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="PATH",
            parser=expand_user_path,
            help="The folder.",
            show_default="below evals/",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on with it, or start one beside it."),
    ] = True,
    retry_broken: given.RetryBroken = False,
    as_json: given.AsJson = False,
) -> None:
    """Let candidates play the same held-out tasks, and compare them with the first.

    The same command goes on where it stopped; a candidate that is done is not played again.

    Examples:

    ludus eval wordle -c random -c oracle

    ludus eval reasoning_gym:chain_sum -c base=smollm2 -c sft=hf:models/chain_sum -n 200
    """
    from ludus.evaluation.candidates import CandidateConfig, parse_candidates
    from ludus.evaluation.config import EvalConfig
    from ludus.rollout import SYSTEM_PROMPT, read_tasks

    config = EvalConfig(
        num_episodes=num_episodes,
        task=task_arguments(task, dataset_config),
        seed=seed,
        group_size=group_size,
        tasks=read_tasks(tasks) if tasks is not None else (),
        system_prompt=SYSTEM_PROMPT if system_prompt is None else system_prompt or None,
        max_turns=max_turns,
        max_tokens=max_tokens,
        max_episode_tokens=max_episode_tokens,
        episode_timeout=parse_duration(episode_timeout, "--episode-timeout"),
        base_url=base_url,
        token=token,
        resume=resume,
        retry_broken=retry_broken,
        concurrency=concurrency,
        solved_at=solved_at,
        exclude_tasks_in=not_in,
    )
    options = CandidateConfig(
        llm_endpoint,
        temperature,
        device,
        dtype,
        concurrency,
        template_kwargs(thinking, chat_template_kwargs),
    )
    found = _run_evaluation(
        environment, parse_candidates(candidate, options), output_dir, config, as_json=as_json
    )
    _print_result(found, as_json=as_json)


def _run_evaluation(
    environment: str,
    candidates: list[Candidate],
    out: Path | None,
    config: EvalConfig,
    *,
    as_json: bool,
) -> Evaluation:
    from ludus.cli.display.collect_display import collect_display
    from ludus.cli.display.signals import InterruptHandler, run_async
    from ludus.evaluation.pipeline import evaluate as evaluate_candidates

    with collect_display(as_json=as_json) as shown:

        @contextmanager
        def watch(label: str) -> Iterator[CollectProgress]:
            # Anew for each: between two candidates Ctrl-C is what it always is.
            shown.label = label
            with InterruptHandler(shown, shown.announce_candidate) as reporter:
                yield reporter

        try:
            return run_async(
                evaluate_candidates(
                    environment,
                    candidates,
                    out,
                    config,
                    progress=watch,
                    on_phase=shown.phase,
                    command=typed_command(),
                )
            )
        except LudusError as error:
            shown.report_failure(str(error))
            raise


def _print_result(found: Evaluation, *, as_json: bool) -> None:
    from ludus.cli.display.signals import EXIT_CODES

    if as_json:
        facts = {"event": "summary", "folder": str(found.folder), **found.as_json()}
        typer.echo(json.dumps(facts, allow_nan=False))
    else:
        _print_evaluation(found)
    if found.stopped in EXIT_CODES:
        raise typer.Exit(EXIT_CODES[found.stopped])


def _print_evaluation(found: Evaluation) -> None:
    from rich.text import Text

    from ludus.cli.display.console import console, escape_control_chars
    from ludus.evaluation.table import build_notes, build_tables, describe_method

    out = console()
    out.print(_build_table(build_tables(found), out.width))
    out.print(Text(describe_method(found), style="dim"), soft_wrap=True)
    for note in build_notes(found):
        out.print(Text(escape_control_chars(note), style="yellow"), soft_wrap=True)
    out.print(Text(f"evaluation: {found.folder}"), soft_wrap=True)


def _build_table(sheets: list[ResultTable], width: int) -> Table:
    """The first shape that fits, at first with intervals beside their values, then below them."""
    from rich.table import Table

    shapes = [(sheet, cut) for sheet in sheets for cut in (" ", "\n")]
    sheet, cut = next((shape for shape in shapes if _table_width(*shape) <= width), shapes[-1])
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_PADDING, 0, 0))
    for name in sheet.header:
        # A long label is folded before a figure is.
        table.add_column(name, no_wrap=name != _LABEL_COLUMN, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(_format_cell(cell, cut) for cell in row))
    return table


def _table_width(sheet: ResultTable, cut: str) -> int:
    columns = zip(sheet.header, *sheet.rows, strict=True)
    widest = (
        max(len(line) for cell in column for line in _cell_lines(cell, cut)) for column in columns
    )
    return sum(width + _COLUMN_PADDING for width in widest) - _COLUMN_PADDING


def _format_cell(cell: str, cut: str) -> Text:
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    value, bracket, interval = escape_control_chars(cell).partition(" (")
    return Text.assemble(value, (f"{cut}({interval}" if bracket else "", "dim"))


def _cell_lines(cell: str, cut: str) -> list[str]:
    return cell.replace(" (", f"{cut}(").split("\n")
