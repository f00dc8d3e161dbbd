"""`ludus train`: SFT, DPO, GRPO, and rounds with a tutor.

With several processes (torchrun) only rank 0 prints and uploads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.flags import command, to_texts
from ludus.options import Option, expand_path
from ludus.train.config import TrainConfig
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.tutoring.config import TutorConfig

if TYPE_CHECKING:
    from ludus.train import TrainResult

Data = Annotated[
    Path,
    Option(metavar="DATA", parse=expand_path),
    "Folder of `ludus curate`, a file of rows, or a data set on the Hub.",
]


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
def sft_command(
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
    from ludus.train import offline

    config = common.with_thinking(config, run.thinking)
    run_training(partial(offline.sft, data), config, run)


@command(without=("compile",))
def dpo_command(
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
    from ludus.train import offline

    config = common.with_thinking(config, run.thinking)
    run_training(partial(offline.dpo, data), config, run)


@command
def grpo_command(
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
    from ludus.train.grpo import pipeline

    # With a curriculum over variants, the record has the environments.
    has_variants = any(axis.partition("=")[0].strip() == "variant" for axis in config.curriculum)
    words = [env, *(["--base-url", config.base_url] if config.base_url else [])]
    for text in to_texts(config.task) if config.task else ():
        words += ["--task", text]
    if config.system_prompt != GRPOConfig().system_prompt:
        words += ["--system-prompt", config.system_prompt or ""]
    config = common.with_thinking(config, run.thinking)
    environment = None if has_variants else words
    run_training(partial(pipeline.grpo, env), config, run, environment=environment)


@command(without=("beta", "minutes"))
def tutor_command(
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
    from ludus.tutoring import pipeline

    train = common.with_thinking(train, run.thinking)
    config = replace(config, tutor=agent_from_spec(tutor), train=train)
    again = "continues the round"
    run_training(partial(pipeline.tutor, env), config, run, without_checkpoint=again)


def run_training(
    stage: Callable[..., TrainResult],
    config: TrainConfig | GRPOConfig | TutorConfig,
    run: TrainRun,
    *,
    environment: Sequence[str] | None = None,
    without_checkpoint: str = "starts anew",
) -> None:
    """Train, print the result, and upload the model.

    `environment` are arguments of `ludus eval` that name it; by default the environment that the
    rows come from. `without_checkpoint` is what the same command does after a run was killed
    before its first one.
    """
    from ludus.cli.display.signals import EXIT_CODES
    from ludus.cli.display.status import format_event
    from ludus.cli.display.train_display import training_progress
    from ludus.cli.display.train_summary import print_training_summary, training_summary_fields
    from ludus.cli.hub_uploads import push_trained_model
    from ludus.publish.hub_upload import MODEL
    from ludus.tutoring import TutorResult

    push = run.push_to_hub
    if push is not None:
        push.check(MODEL)
    end_if_checking()
    is_rank_0 = os.environ.get("RANK", "0") == "0"
    again = "the same command without --overwrite" if run.overwrite else "the same command"
    on_checked = partial(push.create, MODEL) if push is not None and is_rank_0 else None
    with (
        training_progress(
            quiet=not is_rank_0, as_json=run.as_json, on_checked=on_checked
        ) as display,
        # Experiment trackers print on stdout, which is for results.
        redirect_stdout(sys.stderr),
    ):
        try:
            result = stage(
                run.model,
                run.out,
                config,
                overwrite=run.overwrite,
                command=typed_command(),
                progress=display,
            )
        except KeyboardInterrupt:
            if not display.has_begun:
                raise
            from ludus.train.output.checkpoints import latest_checkpoint, read_state

            checkpoint = latest_checkpoint(run.out.expanduser())
            state = None if checkpoint is None else read_state(checkpoint)
            effect = f"resumes after step {state.step:,}" if state else without_checkpoint
            raise KeyboardInterrupt(f"Stopped at once; {again} {effect}.") from None
    # A signal after the last step: the model is complete, but later stages must not start.
    stopped = result.stopped or display.stopping
    if is_rank_0:
        if result.stopped is not None and not run.as_json:
            where = f"at step {result.steps:,}"
            if isinstance(result, TutorResult):
                where = f"in round {len(result.rounds) + 1}"
            print(f"Stopped {where}; {again} resumes there.")
        if not run.as_json and (result.stopped is None or result.has_model):
            print_training_summary(result, run.model, environment)
        fields = training_summary_fields(result) if run.as_json else {}
        if push is not None and stopped is None:
            url = push_trained_model(
                result.folder, push.repo_id, private=push.private, retry_command=again
            )
            if not run.as_json:
                print(f"Model: {url}")
            fields["url"] = url
        if run.as_json:
            print(format_event("summary", fields))
    if stopped is not None:
        sys.exit(EXIT_CODES.get(stopped, 1))
