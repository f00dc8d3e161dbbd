"""`ludus rescore`: score the episodes of a run again, without playing them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.display.console import print_table, print_text
from ludus.cli.display.formatting import format_count, format_dollars, plural
from ludus.cli.display.signals import exit_if_signalled
from ludus.cli.flags import command
from ludus.data.interval_estimates import format_mean
from ludus.data.json_files import read_text
from ludus.errors import ConfigError
from ludus.options import Option, expand_path
from ludus.policy.agent_factory import AgentConfig
from ludus.scoring.config import RescoreConfig

if TYPE_CHECKING:
    from ludus.cli.display.run_display import RunDisplay
    from ludus.scoring.rescore import RescoreResult


_JUDGE_OPTIONS = ("llm_endpoint", "temperature", "extra", "prices", "device", "dtype")


@command
def rescore_command(
    run: Annotated[str, Option(metavar="RUN"), "Run: path, name or `last`. It is not changed."],
    *,
    config: RescoreConfig,
    judge: Annotated[
        str | None,
        Option("Agent", metavar="AGENT"),
        "Model that judges: openai:MODEL, anthropic:MODEL or hf:PATH.",
    ] = None,
    judge_prompt: Annotated[
        Path | None,
        Option("Agent", metavar="FILE", default="general ones", parse=expand_path),
        "Text file of the criteria by which the judge scores.",
    ] = None,
    judge_groups: Annotated[
        bool,
        Option("Agent"),
        "Judge all attempts at a task in one call, relative to each other.",
    ] = False,
    options: AgentConfig,
    max_tokens: Annotated[
        int, Option("Limits", advanced=True), "Maximum number of tokens per reply."
    ] = 2048,
    max_cost: Annotated[
        float | None,
        Option("Limits", advanced=True, default="no limit"),
        "Stop at this cost in US dollars.",
    ] = None,
    out: Annotated[
        Path | None,
        common.output_option("beside RUN, named after it and the settings"),
        "New run folder.",
    ] = None,
    as_json: common.JsonLines = False,
) -> None:
    """Score the episodes of a run again, without playing them, and write a new run.

    The new reward is the weighted sum of all --reward and the judge's score. Run the same command
    again to resume.

    Examples:

    ludus rescore runs/wordle --reward rewards:quality -o runs/wordle-quality

    ludus rescore runs/wordle --judge openai:gpt-5-mini --judge-prompt criteria.md --judge-groups
    """
    from ludus.cli.display.run_display import progress
    from ludus.cli.display.status import format_event
    from ludus.policy.agent_factory import agent_from_config, parse_agent
    from ludus.scoring.judge import Judge
    from ludus.scoring.judge_prompt import DEFAULT_CRITERIA

    criteria = DEFAULT_CRITERIA
    if judge_prompt is not None:
        try:
            criteria = read_text(judge_prompt)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"`judge_prompt` {judge_prompt} cannot be read: {reason}.") from error
    if judge is not None:
        provider, model = parse_agent(judge)
        judge_model = Judge(
            agent_from_config(replace(options, provider=provider, model=model)),
            criteria,
            groups=judge_groups,
            max_tokens=max_tokens,
            max_cost=max_cost,
        )
        config = replace(config, judge=judge_model)
    else:
        given = {name: getattr(options, name) for name in _JUDGE_OPTIONS}
        given |= {"judge_prompt": judge_prompt, "judge_groups": judge_groups, "max_cost": max_cost}
        for name, value in given.items():
            if value is not None and value is not False and value != {}:
                raise ConfigError(f"`{name}` needs a `judge`, such as openai:MODEL.")
    path = common.resolve_run_path(run)

    async def score(display: RunDisplay) -> RescoreResult:
        from ludus.scoring.rescore import rescore

        async with config.judge or nullcontext():
            return await rescore(path, out, config, progress=display)

    with progress(as_json=as_json) as display:
        result = display.run(score(display))
    if as_json:
        fields = {"folder": str(result.folder), "stopped": result.stop_reason, **result.summary}
        print(format_event("summary", fields))
    else:
        print_rescore_result(result)
    exit_if_signalled(result.stop_reason)


def print_rescore_result(result: RescoreResult) -> None:
    """Print rewards before and after, what the judge used, and the folder."""

    comparison = result.comparison
    estimates = (comparison.before, comparison.after)
    counts = ("0" if each is None else f"{each.n:,}" for each in estimates)
    means = ("" if each is None else format_mean(each.value, each.interval) for each in estimates)
    rows = (
        ("scored episodes", *counts),
        ("mean reward (95 % interval)", *means),
        ("changed", "", f"{comparison.changed:,}"),
        ("scored now", "", f"{result.new_episodes:,}"),
    )
    print_table(("", "before", "after"), rows, right=("before", "after"))
    if (judge := result.summary.get("judge")) is not None:
        usage = judge["usage"]
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        parts = [
            plural(judge["calls"], "call"),
            f"{judge['failed']:,} failed" if judge["failed"] else "",
            f"{format_count(tokens)} tokens" if tokens else "",
            format_dollars(usage["cost"]),
        ]
        print_text(f"Judge: {', '.join(filter(None, parts))}.")
    print_text(f"run: {result.folder}")
    summary = result.summary
    if summary["remaining"]:
        left = f"{plural(summary['remaining'], 'episode')} ({result.stop_reason or 'not scored'})"
        print_text(f"Left to do: {left}. The same command resumes.", "yellow")
    if summary["broken"]:
        text = f"Broken and not scored: {plural(summary['broken'], 'episode')}."
        if judge is not None:
            text += " Judge again those on which the judge failed: --retry-broken."
        print_text(text, "yellow")
