"""`ludus collect`: play many episodes concurrently and store them in a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli import common_options as common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.common_options import (
    parse_duration,
    parse_json_object,
    parse_task_options,
    parse_template_options,
)
from ludus.errors import ConfigError, LudusError

if TYPE_CHECKING:
    from ludus.cli.display.collect_display import CollectDisplay
    from ludus.rollout import CollectConfig, CollectResult

_DEFAULT_CALL_TIMEOUT, _DEFAULT_RETRIES = "5m", 8
_LOCAL_PROVIDERS = ("oracle", "random", "human", "hf")
"""Providers that call no API."""


def collect(
    env: common.Env,
    action: common.Action = None,
    base_url: common.BaseUrl = None,
    token: common.Token = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="Agent that plays: oracle, openai, anthropic, hf, random or human.",
            show_default="oracle",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model name of the provider; for hf a folder, a Hub id or smollm2."),
    ] = None,
    llm_endpoint: Annotated[
        str | None,
        typer.Option(
            help="URL of an OpenAI-compatible server: vLLM, Ollama, llama.cpp. With "
            "--tutor openai:MODEL and another --provider it is used for the tutor."
        ),
    ] = None,
    explore: common.Explore = 0.0,
    tutor: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT",
            help="Agent that labels every state that the player reaches: oracle, openai:MODEL, "
            "anthropic:MODEL, hf:PATH or smollm2.",
            show_default="none",
        ),
    ] = None,
    working: common.Working = False,
    temperature: common.Temperature = None,
    extra: common.ExtraFields = None,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    device: common.Device = None,
    dtype: common.Dtype = None,
    system_prompt: common.SystemPrompt = None,
    num_episodes: Annotated[
        int | None,
        typer.Option(
            "--num-episodes",
            "-n",
            min=1,
            help="Number of episodes.",
            show_default="10, or all of --tasks",
        ),
    ] = None,
    group_size: common.GroupSize = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed that selects the tasks.")] = 0,
    dataset_config: common.DatasetConfig = None,
    task: common.Task = None,
    tasks: common.Tasks = None,
    max_turns: common.MaxTurns = None,
    max_tokens: common.MaxTokens = 2048,
    max_episode_tokens: common.MaxEpisodeTokens = None,
    concurrency: common.Concurrency = 64,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Worker processes that play, where environment and agent only compute; 1: none. "
            "With --ray, workers on the cluster.",
            show_default="up to one per core, if the run is long enough",
        ),
    ] = None,
    ray: common.Ray = None,
    call_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Timeout of one API call.", show_default="5m"),
    ] = None,
    episode_timeout: common.EpisodeTimeout = "1h",
    max_retries: Annotated[
        int | None,
        typer.Option(min=0, help="Maximum number of retries per API call.", show_default="8"),
    ] = None,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="Maximum number of attempts at an episode that breaks.")
    ] = 3,
    max_cost: common.MaxCost = None,
    max_total_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop at this number of prompt and completion tokens.",
            show_default="no limit",
        ),
    ] = None,
    max_time: common.MaxTime = None,
    prices: common.Prices = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder that caches replies to identical API requests.")
    ] = None,
    out: Annotated[
        Path | None,
        common.output_dir_option("Run folder.", default="in runs/, named after the settings"),
    ] = None,
    resume: common.ResumeRun = True,
    retry_broken: common.RetryBroken = False,
    push_to_hub: common.PushDataset = None,
    private: common.Private = False,
    debug: common.Debug = False,
    as_json: common.JsonLines = False,
) -> None:
    """Play episodes concurrently and store all of them.

    Run the same command again to resume. Without --provider the environment's own solution plays;
    without --base-url the environment runs in this process.

    Examples:

    ludus collect wordle -n 100

    ludus collect reasoning_gym:chain_sum --provider openai --model gpt-5-mini -n 300

    ludus collect wordle --provider hf --model smollm2 -n 100

    ludus collect wordle --provider hf --model models/wordle --tutor oracle -n 500
    """
    from ludus.cli.display.collect_display import collect_display
    from ludus.cli.display.environment_errors import record_environment_errors
    from ludus.policy.agent_factory import AgentConfig, agent_from_config, agent_from_spec
    from ludus.rollout import SYSTEM_PROMPT, CollectConfig, read_tasks
    from ludus.rollout.config import STALL_WARNING_S

    if push_to_hub is not None:
        from ludus.publish.hub_upload import check_login, check_upload_target

        check_upload_target(push_to_hub)
        check_login()
    # A server that the player has no use for is the tutor's.
    is_tutors = provider not in (None, "openai") and (tutor or "").startswith("openai:")
    tutor_calls_api = (tutor or "").startswith(("openai:", "anthropic:"))
    player_calls_api = provider in ("openai", "anthropic") or not tutor_calls_api
    api_options: dict[str, Any] = {
        "call_timeout": parse_duration(call_timeout or _DEFAULT_CALL_TIMEOUT, "--call-timeout"),
        "max_retries": _DEFAULT_RETRIES if max_retries is None else max_retries,
        "cache": cache,
        "prices": prices,
    }
    agent = agent_from_config(
        AgentConfig(
            provider=provider,
            model=model,
            llm_endpoint=None if is_tutors else llm_endpoint,
            temperature=temperature,
            extra=parse_json_object(extra, "--extra"),
            chat_template_kwargs=parse_template_options(thinking, chat_template_kwargs),
            concurrency=concurrency,
            device=device,
            dtype=dtype,
            **(api_options if player_calls_api else {}),
        )
    )
    if agent.provider in _LOCAL_PROVIDERS and not tutor_calls_api:
        for flag, value in (("--call-timeout", call_timeout), ("--max-retries", max_retries)):
            if value is not None:
                raise ConfigError(
                    f"{flag} is not supported by provider {agent.provider!r}, which calls no API. "
                    "Use --episode-timeout or --max-attempts."
                )
    is_human = agent.provider == "human"
    tutor_is_model = tutor not in (None, "oracle", "random")
    config = CollectConfig(
        agent=agent,
        explore=explore,
        tutor=None
        if tutor is None
        else agent_from_spec(
            tutor,
            concurrency=concurrency,
            llm_endpoint=llm_endpoint if is_tutors else None,
            **(api_options if tutor_calls_api else {}),
        ),
        working=working,
        num_episodes=num_episodes,
        task=parse_task_options(task, dataset_config),
        seed=seed,
        group_size=group_size,
        tasks=read_tasks(tasks) if tasks is not None else (),
        system_prompt=SYSTEM_PROMPT if system_prompt is None else system_prompt or None,
        max_turns=max_turns,
        max_tokens=max_tokens if model is not None or tutor_is_model else None,
        max_episode_tokens=max_episode_tokens,
        episode_timeout=None if is_human else parse_duration(episode_timeout, "--episode-timeout"),
        base_url=base_url,
        token=token,
        resume=resume,
        retry_broken=retry_broken,
        concurrency=1 if is_human else concurrency,
        workers=workers,
        ray=ray,
        max_attempts=max_attempts,
        stall_warning=math.inf if is_human else STALL_WARNING_S,
        max_cost=max_cost,
        max_total_tokens=max_total_tokens,
        max_time=parse_duration(max_time, "--max-time") if max_time is not None else None,
    )

    end_if_checking()

    def create_repo() -> None:
        """Create the Hub repository before the first episode, so that a refusal costs nothing."""
        if push_to_hub is not None:
            from ludus.publish.hub_upload import open_repo

            open_repo(push_to_hub, private=private)

    with (
        record_environment_errors(debug=debug) as errors,
        collect_display(as_json=as_json, quiet=is_human) as display,
    ):
        display.on_checked = create_repo
        result = _run_collect(env, out, config, display)
    _print_result(result, errors, as_json=as_json)
    if push_to_hub is not None:
        _push_run(result, push_to_hub, private=private, as_json=as_json)


def _run_collect(
    env: str, out: Path | None, config: CollectConfig, display: CollectDisplay
) -> CollectResult:
    from ludus.cli.display.signals import handle_signals
    from ludus.client.event_loop import run_async
    from ludus.rollout.collect import collect

    async def main() -> CollectResult:
        assert config.agent is not None
        with handle_signals(display.request_stop):
            async with config.agent, config.tutor or nullcontext():
                return await collect(env, out, config, progress=display)

    try:
        return run_async(main())
    except LudusError as error:
        display.report_failure(str(error))
        raise


def _print_result(result: CollectResult, errors: Sequence[str], *, as_json: bool) -> None:
    from ludus.cli.display.signals import exit_if_signalled

    if as_json:
        fields = {"folder": str(result.folder), "stopped": result.stop_reason, **result.summary}
        fields["environment_faults"] = list(errors)
        typer.echo(json.dumps({"event": "summary", **fields}, allow_nan=False))
    else:
        from ludus.cli.display.console import console
        from ludus.cli.display.run_summary import render_summary

        console().print(render_summary(result, errors), soft_wrap=True)
    exit_if_signalled(result.stop_reason)


def _push_run(result: CollectResult, repo_id: str, *, private: bool, as_json: bool) -> None:
    from ludus.cli.hub_uploads import push_run

    url = push_run(
        result.folder,
        repo_id,
        private=private,
        retry_command="the same command",
        command=typed_command(),
    )
    typer.echo(json.dumps({"event": "pushed", "url": url}) if as_json else f"Data set: {url}")
