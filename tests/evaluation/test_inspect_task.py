"""An environment under `inspect eval`, with Inspect's mock model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.oracle import OracleAgent
from ludus.data.episode_reader import episodes
from ludus.evaluation import Candidate, EvalConfig, evaluate_sync, inspect_task

inspect_ai = pytest.importorskip("inspect_ai")
# Inspect leaves streams to the garbage collector, and uses deprecated calls of its dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Collect those streams while their warnings are ignored, and not during another test."""
    yield
    gc.collect()


def run_inspect(folder: Path, task: Any, outputs: list[Any]) -> Any:
    from inspect_ai.model import ModelUsage, get_model

    for output in outputs:
        # Without it the mock model counts tokens with a tokenizer that it downloads.
        output.usage = ModelUsage(input_tokens=7, output_tokens=3, total_tokens=10)
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(
        task, model=model, log_dir=str(folder), display="none", max_samples=1, max_connections=1
    )
    return log


def calls(*arguments: dict[str, Any], tool: str) -> list[Any]:
    from inspect_ai.model import ModelOutput

    return [ModelOutput.for_tool_call("mockllm/model", tool, each) for each in arguments]


def oracle_calls(folder: Path, env: str, config: EvalConfig) -> tuple[str, list[dict[str, Any]]]:
    """The calls of the oracle in `ludus eval` on the same tasks, in the order of the plan."""
    import json

    evaluate_sync(env, [Candidate("oracle", OracleAgent())], folder, config)
    played = sorted(
        episodes(folder / "oracle" / "episodes.jsonl"), key=lambda each: each.episode_id
    )
    made = [
        call.function for each in played for message in each.messages
        for call in message.tool_calls or ()
    ]  # fmt: skip
    return made[0].name, [json.loads(function.arguments) for function in made]


def test_the_model_plays_the_tasks_of_ludus_eval(tmp_path: Path) -> None:
    config = EvalConfig(num_episodes=3)
    tool, right = oracle_calls(tmp_path / "eval", "reasoning_gym:chain_sum", config)
    wrong = {name: "no" for name in right[1]}
    outputs = calls(right[0], wrong, right[2], tool=tool)
    log = run_inspect(tmp_path / "log", inspect_task("reasoning_gym:chain_sum", config), outputs)
    assert log.status == "success", log.error
    rewards = [sample.scores["ludus"].value["solved"] for sample in log.samples]
    assert rewards == [1.0, 0.0, 1.0]
    metrics = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert metrics["solved"] == pytest.approx(2 / 3)
    roles = [message.role for message in log.samples[0].messages]
    assert roles == ["system", "user", "assistant", "tool"]


def test_epochs_are_attempts_at_the_same_task(tmp_path: Path) -> None:
    from inspect_ai.model import ModelOutput

    config = EvalConfig(num_episodes=4, group_size=2)
    silent = [ModelOutput.from_content("mockllm/model", "Hm.")] * 4
    log = run_inspect(tmp_path, inspect_task("guess_number", config), silent)
    played = sorted((sample.id, sample.epoch) for sample in log.samples)
    assert played == [(1, 1), (1, 2), (2, 1), (2, 2)], log.error
    questions = {sample.id: set[str]() for sample in log.samples}
    for sample in log.samples:
        questions[sample.id].add(str(sample.scores["ludus"].metadata["task"]))
    assert all(len(each) == 1 for each in questions.values()) and len(questions) == 2


def test_a_broken_episode_is_an_error_of_the_sample(tmp_path: Path) -> None:
    task = inspect_task("http://127.0.0.1:9", EvalConfig(num_episodes=1))
    log = run_inspect(tmp_path, task, [])
    assert log.status == "error"
