"""`ludus train sft` and `ludus train dpo`: train a model on rows of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ludus.cli import common
from ludus.cli.command_line import typed_command
from ludus.cli.program import command
from ludus.options import Option, expand_path
from ludus.train.config import TrainConfig

if TYPE_CHECKING:
    from ludus.train import TrainProgress, TrainResult

Data = Annotated[
    Path,
    Option(metavar="DATA", parse=expand_path),
    "Folder of `ludus curate`, a file of rows, or a data set on the Hub.",
]


@command(without=("beta",))
def sft(
    data: Data,
    *,
    model: common.Model,
    out: common.TrainOutput,
    config: TrainConfig,
    thinking: common.Thinking = None,
    overwrite: common.Overwrite = False,
    push_to_hub: common.Push = None,
    as_json: common.JsonLines = False,
) -> None:
    """Supervised fine-tuning on conversations.

    Only assistant messages bear the loss. Run the same command again to resume a stopped training.

    Examples:

    ludus train sft data/wordle --model smollm2 -o models/wordle

    ludus train sft data/wordle -m Qwen/Qwen3-0.6B --lora on --set warmup_steps=20 -o models/wordle
    """
    config = common.with_thinking(config, thinking)
    _train("sft", data, model, out, config, overwrite=overwrite, push=push_to_hub, as_json=as_json)


@command(without=("packing", "compile"))
def dpo(
    data: Data,
    *,
    model: common.Model,
    out: common.TrainOutput,
    config: TrainConfig,
    thinking: common.Thinking = None,
    overwrite: common.Overwrite = False,
    push_to_hub: common.Push = None,
    as_json: common.JsonLines = False,
) -> None:
    """Direct preference optimization on pairs of episodes.

    The rows are pairs from `ludus curate --to dpo`. Run the same command again to resume a stopped
    training.

    Examples:

    ludus train dpo data/pairs --model models/wordle -o models/wordle-dpo

    ludus train dpo data/pairs -m models/wordle --lora on --beta 0.05 -o models/wordle-dpo
    """
    config = common.with_thinking(config, thinking)
    _train("dpo", data, model, out, config, overwrite=overwrite, push=push_to_hub, as_json=as_json)


def _train(
    method: Literal["sft", "dpo"],
    data: Path,
    model: str,
    out: Path,
    config: TrainConfig,
    *,
    overwrite: bool,
    push: common.HubTarget | None,
    as_json: bool,
) -> None:
    from ludus.cli.display.train_metrics import TrainMetrics
    from ludus.cli.display.train_summary import TrainSummary
    from ludus.cli.train_command import run_training

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train import offline

        train = offline.sft if method == "sft" else offline.dpo
        return train(
            data, model, out, config,
            overwrite=overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(
        stage,
        out,
        metrics=TrainMetrics(),
        summary=TrainSummary(model),
        overwrite=overwrite,
        push=push,
        as_json=as_json,
    )
