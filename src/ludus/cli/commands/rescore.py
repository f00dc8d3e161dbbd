"""`ludus rescore`: score the episodes of a run again, without playing them."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli.common_options import expand_user_path, parse_duration, parse_json_object
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.cli.display.rescore_display import RescoreDisplay
    from ludus.scoring.config import RescoreConfig
    from ludus.scoring.judge import Judge
    from ludus.scoring.rescore import RescoreResult


def rescore(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Run: path, name or `last`. It is not changed.")
    ],
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="MODULE:FUNCTION[=WEIGHT]",
            help="Reward function or rubric; repeatable. `environment` is the stored reward, which "
            "otherwise does not count.",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT", help="Model that judges: openai:MODEL, anthropic:MODEL or hf:PATH."
        ),
    ] = None,
    judge_prompt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=expand_user_path,
            help="Text file of the criteria by which the judge scores.",
            show_default="general ones",
        ),
    ] = None,
    judge_groups: Annotated[
        bool,
        typer.Option(
            "--judge-groups",
            help="Judge all attempts at a task in one call, relative to each other.",
        ),
    ] = False,
    judge_weight: Annotated[
        float, typer.Option(help="Weight of the judge's score, which is from 0 to 1.")
    ] = 1.0,
    llm_endpoint: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server for the judge."),
    ] = None,
    temperature: common.Temperature = None,
    extra: common.ExtraFields = None,
    max_tokens: common.MaxTokens = 2048,
    max_attempts: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of calls per judgement, where a reply is invalid."
        ),
    ] = 3,
    max_calls: Annotated[
        int | None,
        typer.Option(min=0, help="Stop after this number of calls.", show_default="no limit"),
    ] = None,
    max_cost: common.MaxCost = None,
    max_time: common.MaxTime = None,
    concurrency: common.Concurrency = 64,
    ray: common.Ray = None,
    prices: common.Prices = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            parser=expand_user_path,
            metavar="PATH",
            help="Folder of judgements; the same episode, criteria and model cost no second call.",
            show_default="~/.cache/ludus/judgements",
        ),
    ] = None,
    device: common.Device = None,
    dtype: common.Dtype = None,
    out: Annotated[
        Path | None,
        common.output_dir_option(
            "New run folder.", default="beside RUN, named after it and the settings"
        ),
    ] = None,
    resume: common.ResumeRun = True,
    retry_broken: Annotated[
        bool, typer.Option("--retry-broken", help="Judge episodes again on which the judge failed.")
    ] = False,
    as_json: common.JsonObject = False,
) -> None:
    """Score the episodes of a run again, without playing them, and write a new run.

    The new reward is the weighted sum of all --reward and the judge's score. Run the same command
    again to resume.

    Examples:

    ludus rescore runs/wordle --reward rewards:quality -o runs/wordle-quality

    ludus rescore runs/wordle --judge openai:gpt-5-mini --judge-prompt criteria.md --judge-groups
    """
    from ludus.cli.display.rescore_display import RescoreDisplay, print_rescore_result
    from ludus.cli.display.signals import exit_if_signalled
    from ludus.cli.display.status import stderr_status
    from ludus.cli.run_lookup import resolve_run_path
    from ludus.policy.agent_factory import agent_from_spec
    from ludus.scoring.config import RescoreConfig
    from ludus.scoring.judge import Judge, default_cache_dir
    from ludus.scoring.judge_prompt import DEFAULT_CRITERIA

    criteria = DEFAULT_CRITERIA if judge_prompt is None else _read_criteria(judge_prompt)
    agent_options = {
        "llm_endpoint": llm_endpoint,
        "temperature": temperature,
        "extra": parse_json_object(extra, "--extra"),
        "prices": prices,
        "device": device,
        "dtype": dtype,
    }
    judge_model: Judge | None = None
    if judge is not None:
        judge_model = Judge(
            agent_from_spec(judge, concurrency=concurrency, **agent_options),
            criteria,
            groups=judge_groups,
            max_attempts=max_attempts,
            max_tokens=max_tokens,
            cache=cache or default_cache_dir(),
            max_calls=max_calls,
            max_cost=max_cost,
        )
    else:
        _reject_judge_options(
            judge_prompt=judge_prompt,
            judge_groups=judge_groups,
            max_calls=max_calls,
            max_cost=max_cost,
            cache=cache,
            **agent_options,
        )
    config = RescoreConfig(
        rewards=rewards or (),
        judge=judge_model,
        judge_weight=judge_weight,
        concurrency=concurrency,
        ray=ray,
        max_time=parse_duration(max_time, "--max-time") if max_time is not None else None,
        resume=resume,
        retry_broken=retry_broken,
    )
    path = resolve_run_path(run)
    # With --json, what a reward function prints must not get between the lines.
    quiet = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with quiet, RescoreDisplay(stderr_status()) as display:
        result = _run_rescore(path, out, config, display)
    if as_json:
        fields = {"folder": str(result.folder), "stopped": result.stop_reason, **result.summary}
        typer.echo(json.dumps(fields, allow_nan=False))
    else:
        print_rescore_result(result)
    exit_if_signalled(result.stop_reason)


def _run_rescore(
    run: Path, out: Path | None, config: RescoreConfig, display: RescoreDisplay
) -> RescoreResult:
    from ludus.cli.display.signals import handle_signals
    from ludus.client.event_loop import run_async
    from ludus.scoring.rescore import rescore

    async def main() -> RescoreResult:
        with handle_signals(display.request_stop):
            async with config.judge or nullcontext():
                return await rescore(run, out, config, progress=display)

    return run_async(main())


def _read_criteria(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"`judge_prompt` {file} cannot be read: {reason}.") from error


def _reject_judge_options(**options: object) -> None:
    for name, value in options.items():
        if value is not None and value is not False and value != {}:
            raise ConfigError(f"`{name}` is for a judge. Give `judge` too, such as openai:MODEL.")
