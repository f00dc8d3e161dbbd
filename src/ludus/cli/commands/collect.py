"""`ludus collect`: play many episodes concurrently and store them in a run folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.display.console import print_facts, print_text
from ludus.cli.display.formatting import (
    format_count,
    format_counts,
    format_dollars,
    format_reward,
    plural,
)
from ludus.cli.flags import command, name_flags
from ludus.errors import ConfigError
from ludus.options import Option
from ludus.policy.agent_factory import AgentConfig
from ludus.rollout.config import CollectConfig

if TYPE_CHECKING:
    from ludus.cli.display.run_display import RunDisplay
    from ludus.rollout import CollectResult


@command
def collect_command(
    env: common.Env,
    *,
    agent: Annotated[
        str | None,
        Option("Agent", metavar="AGENT", default="oracle"),
        "Agent that plays: oracle, openai:MODEL, anthropic:MODEL, a model's folder, hf:MODEL, "
        "smollm2, random or human.",
    ] = None,
    tutor: Annotated[
        str | None,
        Option("Agent", advanced=True, metavar="AGENT", default="none"),
        "Agent that labels every state that the player reaches.",
    ] = None,
    config: CollectConfig,
    options: AgentConfig,
    thinking: common.Thinking = None,
    out: Annotated[
        Path | None,
        common.output_option("in runs/, named after the settings"),
        "Run folder.",
    ] = None,
    push_to_hub: common.Push = None,
    debug: common.Debug = False,
    as_json: common.JsonLines = False,
) -> None:
    """Play episodes concurrently and store all of them.

    Run the same command again to resume. Without --agent the environment's own solution plays.

    Examples:

    ludus collect wordle -n 100

    ludus collect reasoning_gym:chain_sum --agent openai:gpt-5-mini -n 300

    ludus collect wordle --agent smollm2 -n 100

    ludus collect wordle --agent models/wordle --tutor oracle -n 500
    """
    from ludus.cli.display.run_display import progress
    from ludus.cli.display.signals import EXIT_CODES, exit_if_signalled
    from ludus.cli.display.status import format_event
    from ludus.cli.hub_uploads import push_data
    from ludus.policy.agent_factory import agent_from_config, agent_from_spec, parse_agent

    if push_to_hub is not None:
        push_to_hub.check()
    options = common.with_thinking(options, thinking)
    if agent is not None:
        if options.provider or options.model:
            raise ConfigError("`agent` and `provider` both say who plays. Give one.")
        provider, model = parse_agent(agent)
        options = replace(options, provider=provider, model=model)
    labeller = None
    if tutor is not None:
        endpoint = None
        if tutor.startswith("openai:") and options.provider not in (None, "openai"):
            # The player has no use for a server.
            endpoint, options = options.llm_endpoint, replace(options, llm_endpoint=None)
        labeller = agent_from_spec(tutor, llm_endpoint=endpoint, concurrency=options.concurrency)
    player = agent_from_config(options)
    config = replace(config, agent=player, tutor=labeller)
    is_human = player.provider == "human"
    if is_human:
        config = replace(config, episode_timeout=None, concurrency=1, stall_warning=math.inf)
    end_if_checking()

    async def play(display: RunDisplay) -> CollectResult:
        from ludus.rollout.collect import collect

        async with player, labeller or nullcontext():
            return await collect(env, out, config, progress=display)

    with (
        common.record_environment_errors(debug=debug) as errors,
        progress(quiet=is_human, as_json=as_json) as display,
    ):
        if push_to_hub is not None:
            # Before the first episode, so that a refusal costs nothing.
            display.on_checked = push_to_hub.create
        result = display.run(play(display), is_human=is_human)
    if not as_json:
        print_collect_result(result, errors)
    fields = {"folder": str(result.folder), "stopped": result.stop_reason, **result.summary}
    fields["environment_faults"] = list(errors)
    if push_to_hub is not None and result.stop_reason not in EXIT_CODES:
        fields["url"] = push_data(
            result.folder,
            push_to_hub.repo_id,
            private=push_to_hub.private,
            retry_command="the same command",
            command=typed_command(),
        )
        if not as_json:
            print(f"Data set: {fields['url']}")
    if as_json:
        print(format_event("summary", fields))
    exit_if_signalled(result.stop_reason)


def print_collect_result(result: CollectResult, errors: Sequence[str]) -> None:
    """Print counts, reward, tokens and stop reasons; `errors` are the environment's exceptions."""
    summary, usage = result.summary, result.summary["usage"]
    reward, tokens = format_reward(summary, label="95 % interval "), ""
    if summary["scored"]:
        reward += f", n = {summary['scored']:,}"
    if usage["prompt_tokens"] or usage["completion_tokens"]:
        prompt, completion = map(format_count, (usage["prompt_tokens"], usage["completion_tokens"]))
        cost = f", {format_dollars(usage['cost'])}" if usage["cost"] is not None else ""
        tokens = f"{prompt} in, {completion} out{cost}"
    planned = f" of {summary['planned']:,}" if summary["remaining"] else ""
    new = result.new_episodes
    news = "" if new == summary["episodes"] else f" ({new:,} new)"
    if not new:
        news = " (none new: the run was complete)"
    print_facts(
        [
            ("episodes", f"{summary['episodes']:,}{planned}{news}"),
            ("mean reward", reward),
            ("tokens", tokens),
            ("ended", format_counts(summary["stop_reasons"])),
        ]
    )
    print_text(f"run          {result.folder}")
    if summary["remaining"]:
        left = f"{plural(summary['remaining'], 'episode')} ({result.stop_reason or 'not played'})"
        print_text(f"Left to do: {left}. The same command resumes.", "yellow")
    if cut_off := summary["stop_reasons"].get("max_turns"):
        text = f"{cut_off:,} of {plural(summary['episodes'], 'episode')} reached `max_turns`."
        print_text(name_flags(text), "yellow")
    if summary["broken"]:
        broken = plural(summary["broken"], "episode")
        print_text(f"Broken and not scored: {broken}. Retry with --retry-broken.", "yellow")
    for error in errors:
        print_text(f"The environment raised  {error}", "red")
