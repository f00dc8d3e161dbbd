"""`ludus train tutor`: rounds in which a model plays, a tutor corrects it, and it is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.command_line import typed_command
from ludus.cli.program import command
from ludus.options import Option
from ludus.train.config import TrainConfig
from ludus.tutoring.config import TutorConfig

if TYPE_CHECKING:
    from ludus.train import TrainProgress, TrainResult


@command(without=("beta", "packing"))
def tutor(
    env: common.Env,
    *,
    model: common.Model,
    out: common.TrainOutput,
    tutor: Annotated[
        str,
        Option(metavar="AGENT"),
        "Agent that says what to reply in every state: oracle, openai:MODEL, anthropic:MODEL, "
        "hf:PATH or smollm2.",
    ] = "oracle",
    config: TutorConfig,
    train: TrainConfig,
    thinking: common.Thinking = None,
    overwrite: common.Overwrite = False,
    push_to_hub: common.Push = None,
    as_json: common.JsonLines = False,
) -> None:
    """Teach a model an environment with a tutor (DAgger).

    In each round the model plays, the tutor says in every state what it would have done, and the
    model is trained on that by SFT, on the rows of all rounds. Run the same command again to resume
    after Ctrl-C, or with more --rounds to go on.

    Examples:

    ludus train tutor wordle --model smollm2 -o models/wordle

    ludus train tutor catch -m models/catch --tutor-share 0 --rounds 2 -o models/catch-2
    """
    from ludus.cli.display.train_metrics import TrainMetrics
    from ludus.cli.display.tutor_summary import TutorSummary
    from ludus.cli.train_command import run_training
    from ludus.policy.agent_factory import agent_from_spec

    config = replace(
        config, tutor=agent_from_spec(tutor), train=common.with_thinking(train, thinking)
    )

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.tutoring import pipeline

        return pipeline.tutor(
            env, model, out, config,
            overwrite=overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(
        stage,
        out,
        metrics=TrainMetrics(),
        summary=TutorSummary(model),
        overwrite=overwrite,
        push=push_to_hub,
        as_json=as_json,
    )
