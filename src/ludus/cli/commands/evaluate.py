"""`ludus eval`: compare candidates on the same held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.common_options import (
    expand_user_path,
    parse_duration,
    parse_task_options,
    parse_template_options,
)
from ludus.errors import ConfigError, LudusError

if TYPE_CHECKING:
    from ludus.evaluation import Candidate, Evaluation
    from ludus.evaluation.config import EvalConfig
    from ludus.rollout.collect_progress import CollectProgress

EXIT_WORSE = 3
"""Exit code of `--fail-if-worse`; errors have 1, and wrong usage 2."""


def evaluate(
    env: common.Env,
    candidates: Annotated[
        list[str],
        typer.Option(
            "--candidate",
            "-c",
            metavar="[LABEL=]AGENT",
            help="Agent to evaluate: oracle, random, openai:MODEL, anthropic:MODEL, a model's "
            "folder, hf:MODEL or smollm2; repeatable. The others are compared with the first.",
        ),
    ],
    num_episodes: Annotated[
        int | None,
        typer.Option(
            "--num-episodes",
            "-n",
            min=1,
            help="Number of episodes per candidate.",
            show_default="50, or all of --tasks",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed that selects the tasks; not that of the training data."),
    ] = 999,
    group_size: common.GroupSize = 1,
    dataset_config: common.DatasetConfig = None,
    task: common.Task = None,
    tasks: common.Tasks = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW..HIGH|NAME=VALUE,VALUE",
            help="Task argument to vary, such as max_digits=2..6; repeatable for combinations. -n "
            "episodes are played at each value.",
        ),
    ] = None,
    pass_k: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Also report pass@k, at most --group-size; repeatable.",
            show_default="--group-size, if it is above 1",
        ),
    ] = None,
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse",
            help="Exit with code 3 if a candidate is worse than the first in accuracy or reward.",
        ),
    ] = False,
    exclude_tasks_in: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            parser=expand_user_path,
            help="Data set or run; tasks whose question is in it are excluded from all metrics.",
        ),
    ] = None,
    solved_at: common.SolvedAt = 1.0,
    base_url: common.BaseUrl = None,
    token: common.Token = None,
    llm_endpoint: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible server, for openai candidates.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Sampling temperature.",
            show_default="0 for local models, else the model's default",
        ),
    ] = None,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    device: common.Device = None,
    dtype: common.Dtype = None,
    system_prompt: common.SystemPrompt = None,
    max_turns: common.MaxTurns = None,
    max_tokens: common.MaxTokens = 512,
    max_episode_tokens: common.MaxEpisodeTokens = None,
    concurrency: common.Concurrency = 64,
    ray: common.Ray = None,
    episode_timeout: common.EpisodeTimeout = "1h",
    out: Annotated[
        Path | None,
        common.output_dir_option(
            "Folder of the evaluation.", default="in evals/, named after the settings"
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--no-resume", help="Resume the evaluation, or start a new one beside it."
        ),
    ] = True,
    retry_broken: common.RetryBroken = False,
    as_json: common.JsonLines = False,
) -> None:
    """Let candidates play the same held-out tasks, and compare them with the first.

    Run the same command again to resume; a candidate that has finished is not played again.

    Examples:

    ludus eval wordle -c random -c oracle

    ludus eval reasoning_gym:chain_sum -c base=smollm2 -c sft=hf:models/chain_sum -n 200

    ludus eval reasoning_gym:chain_sum -c smollm2 --sweep max_digits=2..6 -n 50
    """
    from ludus.cli.display.eval_table import print_evaluation
    from ludus.cli.display.signals import exit_if_signalled
    from ludus.evaluation.candidates import parse_candidates
    from ludus.evaluation.config import CandidateConfig, EvalConfig
    from ludus.rollout import SYSTEM_PROMPT, read_tasks

    config = EvalConfig(
        num_episodes=num_episodes,
        task=parse_task_options(task, dataset_config),
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
        ray=ray,
        solved_at=solved_at,
        exclude_tasks_in=exclude_tasks_in,
        sweep=tuple(sweep or ()),
        pass_k=tuple(pass_k or ()),
    )
    if fail_if_worse and len(candidates) < 2:
        raise ConfigError("`fail_if_worse` needs a second `candidate` to compare with the first.")
    agents = parse_candidates(
        candidates,
        CandidateConfig(
            llm_endpoint,
            temperature,
            device,
            dtype,
            concurrency,
            parse_template_options(thinking, chat_template_kwargs),
        ),
    )
    for each in agents:
        each.make_agent()  # Raises for a missing key.
    end_if_checking()
    evaluation = _run_evaluation(env, agents, out, config, as_json=as_json)
    if as_json:
        fields = {"folder": str(evaluation.folder), **evaluation.as_json()}
        typer.echo(json.dumps({"event": "summary", **fields}, allow_nan=False))
    else:
        print_evaluation(evaluation)
    exit_if_signalled(evaluation.stop_request)
    if fail_if_worse and evaluation.worse_candidates:
        raise typer.Exit(EXIT_WORSE)


def _run_evaluation(
    env: str, candidates: list[Candidate], out: Path | None, config: EvalConfig, *, as_json: bool
) -> Evaluation:
    from ludus.cli.display.collect_display import collect_display
    from ludus.cli.display.signals import handle_signals
    from ludus.client.event_loop import run_async
    from ludus.evaluation import pipeline

    with collect_display(as_json=as_json) as display:
        greedy = [each.label for each in candidates if each.is_greedy]
        if greedy and config.group_size > 1:
            display.warn(
                f"Attempts at the same task will be equal for {', '.join(greedy)}, because the "
                "most likely token is always taken. Set `temperature`, for example to 1.0."
            )

        @contextmanager
        def progress(label: str) -> Iterator[CollectProgress]:
            # Per candidate, so that a signal between two of them stops at once.
            display.start_candidate(label)
            with handle_signals(display.request_stop):
                yield display

        try:
            return run_async(
                pipeline.evaluate(
                    env,
                    candidates,
                    out,
                    config,
                    progress=progress,
                    on_phase=display.phase,
                    command=typed_command(),
                )
            )
        except LudusError as error:
            display.report_failure(str(error))
            raise
