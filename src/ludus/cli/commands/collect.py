"""`ludus collect`: many episodes at once into a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as given
from ludus.cli.command_line import typed_command
from ludus.cli.common_options import (
    expand_user_path,
    parse_json_object,
    task_arguments,
    template_kwargs,
)
from ludus.cli.display.formatting import parse_duration
from ludus.errors import ConfigError, LudusError

if TYPE_CHECKING:
    from ludus.agents.agent import Agent
    from ludus.cli.display.collect_display import CollectDisplay
    from ludus.rollout import CollectConfig, CollectResult

_DEFAULT_CALL_TIMEOUT, _DEFAULT_RETRIES = "5m", 8
_LOCAL_PROVIDERS = ("oracle", "random", "human", "hf")
"""Providers that ask no server."""


def collect(
    environment: given.Env,
    base_url: given.BaseUrl = None,
    token: given.Token = None,
    provider: Annotated[
        str | None,
        typer.Option(help="oracle, openai, anthropic, hf, random or human.", show_default="oracle"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The provider's name of the model; for hf a folder, a Hub id, smollm2."),
    ] = None,
    llm_endpoint: Annotated[
        str | None,
        typer.Option(help="A server with OpenAI's chat API: vLLM, Ollama, llama.cpp, OpenRouter."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature.", show_default="the model's")
    ] = None,
    extra: Annotated[
        str | None, typer.Option(help="More fields of each request, as JSON: '{\"top_p\": 0.9}'.")
    ] = None,
    thinking: given.Thinking = None,
    chat_template_kwargs: given.ChatTemplateKwargs = None,
    device: given.Device = None,
    dtype: given.Dtype = None,
    system_prompt: given.SystemPrompt = None,
    num_episodes: Annotated[
        int | None,
        typer.Option(
            "--num-episodes",
            "-n",
            min=1,
            help="How many episodes.",
            show_default="10, or all of --tasks",
        ),
    ] = None,
    group_size: given.GroupSize = 1,
    seed: Annotated[int, typer.Option(min=0, help="Which tasks.")] = 0,
    dataset_config: given.DatasetConfig = None,
    task: given.Task = None,
    tasks: given.Tasks = None,
    max_turns: given.MaxTurns = 20,
    max_tokens: given.MaxTokens = 2048,
    max_episode_tokens: given.MaxEpisodeTokens = None,
    concurrency: given.Concurrency = 64,
    call_timeout: Annotated[
        str | None, typer.Option(help="For one reply over an API.", show_default="5m")
    ] = None,
    episode_timeout: given.EpisodeTimeout = "1h",
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="How often a call over an API is tried again.", show_default="8"),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="How often an episode is tried that breaks.")
    ] = 3,
    max_cost: Annotated[float | None, typer.Option(min=0, help="US dollars.")] = None,
    max_total_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the whole run, prompts and replies.")
    ] = None,
    max_time: Annotated[str | None, typer.Option(help="90s, 10m or 2h.")] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A JSON file with dollars per million tokens.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Answer identical requests from this folder.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="PATH",
            parser=expand_user_path,
            help="The run folder.",
            show_default="below runs/",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on with the run, or start one beside it."),
    ] = True,
    retry_broken: given.RetryBroken = False,
    push_to_hub: Annotated[
        str | None, typer.Option("--push-to-hub", "-H", help="USER/NAME of a data set.")
    ] = None,
    private: Annotated[bool, typer.Option(help="Make that data set a private one.")] = False,
    debug: given.Debug = False,
    as_json: given.AsJson = False,
) -> None:
    """Play episodes, many at once, and keep every one of them.

    The same command goes on where it stopped. Without --provider the environment's own solution
    plays, without --base-url the environment runs in this process.

    Examples:

    ludus collect wordle -n 100

    ludus collect reasoning_gym:chain_sum --provider openai --model gpt-5-mini -n 300

    ludus collect wordle --provider hf --model smollm2 -n 100
    """
    from ludus.cli.display.collect_display import collect_display
    from ludus.cli.display.environment_errors import record_environment_errors
    from ludus.policy.agent_factory import AgentConfig, agent_from_config
    from ludus.rollout import SYSTEM_PROMPT, CollectConfig, read_tasks
    from ludus.rollout.config import STALL_WARNING_S

    if push_to_hub is not None:
        from ludus.publish.hub_upload import check_login, check_repo_id

        check_repo_id(push_to_hub)
        check_login()
    agent = agent_from_config(
        AgentConfig(
            provider=provider,
            model=model,
            llm_endpoint=llm_endpoint,
            temperature=temperature,
            extra=parse_json_object(extra, "--extra"),
            chat_template_kwargs=template_kwargs(thinking, chat_template_kwargs),
            concurrency=concurrency,
            call_timeout=parse_duration(call_timeout or _DEFAULT_CALL_TIMEOUT, "--call-timeout"),
            max_retries=_DEFAULT_RETRIES if retries is None else retries,
            cache=cache,
            prices=prices,
            device=device,
            dtype=dtype,
        )
    )
    _reject_api_options(agent.provider, call_timeout, retries)
    person = agent.provider == "human"
    config = CollectConfig(
        agent=agent,
        num_episodes=num_episodes,
        task=task_arguments(task, dataset_config),
        seed=seed,
        group_size=group_size,
        tasks=read_tasks(tasks) if tasks is not None else (),
        system_prompt=SYSTEM_PROMPT if system_prompt is None else system_prompt or None,
        max_turns=max_turns,
        max_tokens=max_tokens if model is not None else None,
        max_episode_tokens=max_episode_tokens,
        episode_timeout=None if person else parse_duration(episode_timeout, "--episode-timeout"),
        base_url=base_url,
        token=token,
        resume=resume,
        retry_broken=retry_broken,
        concurrency=1 if person else concurrency,
        max_attempts=attempts,
        stall_warning=math.inf if person else STALL_WARNING_S,
        max_cost=max_cost,
        max_total_tokens=max_total_tokens,
        max_time=parse_duration(max_time, "--max-time") if max_time is not None else None,
    )
    with (
        record_environment_errors(debug=debug) as faults,
        collect_display(as_json=as_json, quiet=person) as shown,
    ):
        outcome = _run_collect(
            environment,
            output_dir,
            config,
            agent,
            shown,
            partial(_open_repo, push_to_hub, private),
        )
    _print_outcome(outcome, faults, as_json=as_json)
    if push_to_hub is not None:
        _push_run(outcome, push_to_hub, private=private, as_json=as_json)


def _reject_api_options(provider: str, call_timeout: str | None, retries: int | None) -> None:
    """What plays in this process is asked once, and answers."""
    if provider not in _LOCAL_PROVIDERS:
        return
    for option, value in (("--call-timeout", call_timeout), ("--retries", retries)):
        if value is not None:
            raise ConfigError(
                f"{option} means nothing to {provider!r}, which asks no server. Leave it out; "
                "--episode-timeout and --attempts are for every provider."
            )


def _open_repo(repo_id: str | None, private: bool) -> None:
    """Before the first episode: only the Hub knows whether it will take what is collected."""
    if repo_id is not None:
        from ludus.publish.hub_upload import open_repo

        open_repo(repo_id, private=private)


def _run_collect(
    environment: str,
    out: Path | None,
    config: CollectConfig,
    agent: Agent,
    display: CollectDisplay,
    on_checked: Callable[[], None],
) -> CollectResult:
    from ludus.cli.display.signals import InterruptHandler, run_async
    from ludus.rollout.collect import collect as collect_episodes

    async def main() -> CollectResult:
        with InterruptHandler(display, on_checked) as reporter:
            async with agent:
                return await collect_episodes(environment, out, config, progress=reporter)

    try:
        return run_async(main())
    except LudusError as error:
        display.report_failure(str(error))
        raise


def _print_outcome(outcome: CollectResult, faults: Sequence[str], *, as_json: bool) -> None:
    from ludus.cli.display.signals import EXIT_CODES

    if as_json:
        facts = {"folder": str(outcome.folder), "stopped": outcome.stop_reason, **outcome.summary}
        facts["environment_faults"] = list(faults)
        typer.echo(json.dumps({"event": "summary", **facts}, allow_nan=False))
    else:
        from ludus.cli.display.console import console
        from ludus.cli.display.run_summary import render_summary

        console().print(render_summary(outcome, faults), soft_wrap=True)
    if outcome.stop_reason in EXIT_CODES:
        raise typer.Exit(EXIT_CODES[outcome.stop_reason])


def _push_run(outcome: CollectResult, repo_id: str, *, private: bool, as_json: bool) -> None:
    from ludus.curation.exporters.openenv_writer import write_records
    from ludus.publish.hub_upload import push_folder

    write_records(outcome.folder)
    url = push_folder(
        outcome.folder,
        repo_id,
        private=private,
        retry_command="the same command",
        command=typed_command(),
    )
    typer.echo(json.dumps({"event": "pushed", "url": url}) if as_json else f"Data set: {url}")
