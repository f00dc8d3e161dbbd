"""`ludus eval`: compare candidates on the same held-out tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.flags import command
from ludus.errors import ConfigError
from ludus.evaluation.config import EvalConfig
from ludus.options import Option
from ludus.policy.agent_factory import AgentConfig

EXIT_WORSE = 3
"""Exit code of `--fail-if-worse`; errors have 1, and wrong usage 2."""


@command
def eval_command(
    env: common.Env,
    *,
    candidates: Annotated[
        list[str],
        Option(name="candidate", short="c", metavar="[LABEL=]AGENT"),
        "Agent to evaluate: oracle, random, openai:MODEL, anthropic:MODEL, a model's folder, "
        "hf:MODEL or smollm2; repeatable. The others are compared with the first.",
    ],
    config: EvalConfig,
    options: AgentConfig,
    thinking: common.Thinking = None,
    fail_if_worse: Annotated[
        bool,
        Option("Output", advanced=True),
        "Exit with code 3 if a candidate is worse than the first in accuracy or reward.",
    ] = False,
    out: Annotated[
        Path | None,
        common.output_option("in evals/, named after the settings"),
        "Folder of the evaluation.",
    ] = None,
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
    from ludus.cli.display.run_display import progress
    from ludus.cli.display.signals import exit_if_signalled
    from ludus.cli.display.status import format_event
    from ludus.evaluation import pipeline
    from ludus.evaluation.candidates import parse_candidates

    if fail_if_worse and len(candidates) < 2:
        raise ConfigError("`fail_if_worse` needs a second `candidate` to compare with the first.")
    agents = parse_candidates(candidates, common.with_thinking(options, thinking))
    end_if_checking()
    with progress(as_json=as_json) as display:
        greedy = [each.label for each in agents if each.is_greedy]
        if greedy and config.group_size > 1:
            display.warn(
                f"Attempts at the same task will be equal for {', '.join(greedy)}, because the "
                "most likely token is always taken. Set `temperature`, for example to 1.0."
            )
        command = typed_command()
        evaluation = display.run(
            pipeline.evaluate(env, agents, out, config, progress=display, command=command)
        )
    if as_json:
        fields = {"folder": str(evaluation.folder), **evaluation.as_json()}
        print(format_event("summary", fields))
    else:
        print_evaluation(evaluation)
    exit_if_signalled(evaluation.stop_request)
    if fail_if_worse and evaluation.worse_candidates:
        raise SystemExit(EXIT_WORSE)
