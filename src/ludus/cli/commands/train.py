"""`ludus train`: SFT, DPO, GRPO, and rounds with a tutor.

With several processes (torchrun) only rank 0 prints and uploads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, is_stage, typed_command
from ludus.cli.program import command, name_flags, to_texts
from ludus.errors import LudusError
from ludus.options import Option, expand_path
from ludus.train.config import TrainConfig
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.tutoring.config import TutorConfig

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject
    from ludus.train import TrainProgress, TrainResult

Data = Annotated[
    Path,
    Option(metavar="DATA", parse=expand_path),
    "Folder of `ludus curate`, a file of rows, or a data set on the Hub.",
]
_MIN_NAME_WIDTH = 10


@dataclass(frozen=True, slots=True)
class TrainRun:
    """What all methods take beside their config."""

    model: common.Model
    out: common.TrainOutput
    thinking: common.Thinking = None
    overwrite: common.Overwrite = False
    push_to_hub: common.Push = None
    as_json: common.JsonLines = False


@command(without=("beta",))
def sft(
    data: Data,
    *,
    run: TrainRun,
    config: TrainConfig,
) -> None:
    """Supervised fine-tuning on conversations.

    Only assistant messages bear the loss. Run the same command again to resume a stopped training.

    Examples:

    ludus train sft data/wordle --model smollm2 -o models/wordle

    ludus train sft data/wordle -m Qwen/Qwen3-0.6B --lora on --set warmup_steps=20 -o models/wordle
    """
    config = common.with_thinking(config, run.thinking)

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train.offline import sft

        return sft(
            data, run.model, run.out, config,
            overwrite=run.overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(stage, run)


@command(without=("compile",))
def dpo(
    data: Data,
    *,
    run: TrainRun,
    config: TrainConfig,
) -> None:
    """Direct preference optimization on pairs of episodes.

    The rows are pairs from `ludus curate --to dpo`. Run the same command again to resume a stopped
    training.

    Examples:

    ludus train dpo data/pairs --model models/wordle -o models/wordle-dpo

    ludus train dpo data/pairs -m models/wordle --lora on --beta 0.05 -o models/wordle-dpo
    """
    config = common.with_thinking(config, run.thinking)

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train.offline import dpo

        return dpo(
            data, run.model, run.out, config,
            overwrite=run.overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(stage, run)


@command
def grpo(
    env: common.Env,
    *,
    run: TrainRun,
    config: GRPOConfig,
) -> None:
    """Group relative policy optimization on episodes that the model plays.

    The rewards of the episodes of one task are compared with each other. Every episode is kept;
    `ludus show OUT` prints it. Run the same command again to resume a stopped training, or with
    more --steps to extend a finished one.

    Examples:

    ludus train grpo wordle --model models/wordle -o models/wordle-grpo

    ludus train grpo reasoning_gym:chain_sum -m smollm2 --eval-every 25 --early-stop -o models/sums

    ludus train grpo reasoning_gym:chain_sum -m smollm2 --curriculum max_terms=2..5 -o models/sums

    ludus train grpo wordle=0.7,catch=0.3 -m Qwen/Qwen3-0.6B --lora on -o models/games
    """
    config = common.with_thinking(config, run.thinking)

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train.grpo.pipeline import grpo

        return grpo(
            env, run.model, run.out, config,
            overwrite=run.overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    def read_past_log() -> list[JsonObject]:
        from ludus.data.training_log import read_log

        return list(read_log(run.out.expanduser()))

    # With a curriculum over variants, the record has the environments.
    has_variants = any(axis.partition("=")[0].strip() == "variant" for axis in config.curriculum)
    arguments = None if has_variants else _eval_arguments(env, config)
    run_training(stage, run, past_log=read_past_log, environment=arguments)


@command(without=("beta",))
def tutor(
    env: common.Env,
    *,
    run: TrainRun,
    tutor: Annotated[
        str,
        Option(metavar="AGENT"),
        "Agent that says what to reply in every state: oracle, openai:MODEL, anthropic:MODEL, "
        "hf:PATH or smollm2.",
    ] = "oracle",
    config: TutorConfig,
    train: TrainConfig,
) -> None:
    """Teach a model an environment with a tutor (DAgger).

    In each round the model plays, the tutor says in every state what it would have done, and the
    model is trained on that by SFT, on the rows of all rounds. Run the same command again to resume
    after Ctrl-C, or with more --rounds to go on.

    Examples:

    ludus train tutor wordle --model smollm2 -o models/wordle

    ludus train tutor catch -m models/catch --tutor-share 0 --rounds 2 -o models/catch-2
    """
    from ludus.policy.agent_factory import agent_from_spec

    train = common.with_thinking(train, run.thinking)
    config = replace(config, tutor=agent_from_spec(tutor), train=train)

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.tutoring.pipeline import tutor

        return tutor(
            env, run.model, run.out, config,
            overwrite=run.overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(stage, run, without_checkpoint="continues the round")


def _eval_arguments(env: str, config: GRPOConfig) -> tuple[str, ...]:
    """The words with which `ludus eval` plays the same tasks."""
    words = [env, *(["--base-url", config.base_url] if config.base_url else [])]
    for text in to_texts(config.task) if config.task else ():
        words += ["--task", text]
    if config.system_prompt != GRPOConfig().system_prompt:
        words += ["--system-prompt", config.system_prompt or ""]
    return tuple(words)


def run_training(
    stage: Callable[[TrainProgress], TrainResult],
    run: TrainRun,
    *,
    past_log: Callable[[], Iterable[JsonObject]] = tuple,
    environment: tuple[str, ...] | None = None,
    without_checkpoint: str = "starts anew",
) -> None:
    """Train, print the result, and upload the model.

    Args:
        stage: trains.
        run: the options of all methods.
        past_log: reads the log of a run that is resumed.
        environment: arguments of `ludus eval` that name the environment.
        without_checkpoint: what the same command does after a run was killed before its first one.
    """
    from ludus.cli.display.signals import EXIT_CODES
    from ludus.cli.display.train_display import TrainMetrics, train_display
    from ludus.cli.hub_uploads import push_trained_model
    from ludus.publish.hub_upload import MODEL

    push, as_json = run.push_to_hub, run.as_json
    if push is not None:
        push.check(MODEL)
    end_if_checking()
    is_rank_0 = os.environ.get("RANK", "0") == "0"
    again = "the same command without --overwrite" if run.overwrite else "the same command"
    on_checked = partial(push.create, MODEL) if push is not None and is_rank_0 else None
    try:
        with (
            train_display(
                TrainMetrics(past_log),
                as_json=as_json,
                quiet=not is_rank_0,
                on_checked=on_checked,
            ) as display,
            # Experiment trackers print on stdout, which is for results.
            redirect_stdout(sys.stderr),
        ):
            try:
                result = stage(display)
            except KeyboardInterrupt:
                if not display.has_begun:
                    raise
                effect = _describe_resume(run.out.expanduser()) or without_checkpoint
                raise KeyboardInterrupt(f"Stopped at once; {again} {effect}.") from None
        if is_rank_0:
            _print_result(result, run, environment, again)
        # A signal after the last step: the model is complete, but nothing else should follow.
        stopped = result.stopped or display.stopping
        if stopped is not None:
            sys.exit(EXIT_CODES.get(stopped, 1))
        if is_rank_0 and push is not None:
            url = push_trained_model(
                result.folder, push.repo_id, private=push.private, retry_command=again
            )
            print(json.dumps({"event": "pushed", "url": url}) if as_json else f"Model: {url}")
    except LudusError as error:
        if not is_rank_0:
            sys.exit(1)
        if as_json:
            print(json.dumps({"event": "error", "message": name_flags(str(error))}))
        raise


def _describe_resume(out: Path) -> str:
    """From which step a run can be resumed; empty where there is no checkpoint."""
    from ludus.train.output.checkpoints import latest_checkpoint, read_state

    checkpoint = latest_checkpoint(out)
    state = None if checkpoint is None else read_state(checkpoint)
    return f"resumes after step {state.step:,}" if state else ""


def _print_result(
    result: TrainResult, run: TrainRun, environment: tuple[str, ...] | None, again: str
) -> None:
    from ludus.cli.display.console import escape_control_chars
    from ludus.cli.display.train_summary import summarize_training
    from ludus.tutoring import TutorResult

    summary = summarize_training(result, run.model, environment)
    if run.as_json:
        fields = {"folder": str(result.folder), **summary.fields}
        fields |= {"steps": result.steps, "stopped": result.stopped}
        print(json.dumps({"event": "done", **fields}, allow_nan=False))
    elif result.stopped is not None:
        where = f"at step {result.steps:,}"
        if isinstance(result, TutorResult):
            where = f"in round {len(result.rounds) + 1}"
        print(f"Stopped {where}; {again} resumes there.")
    else:
        width = max(_MIN_NAME_WIDTH, *(len(name) + 2 for name, _ in summary.lines))
        for name, value in summary.lines:
            print(escape_control_chars(f"{name:<{width}}{value}"))
        # A recipe has its own next stage.
        for line in [] if is_stage() else summary.advice:
            print(escape_control_chars(line))
