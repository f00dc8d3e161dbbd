"""The example scripts, with small models on real servers."""

from __future__ import annotations

import json
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved
from tiny_tokenizers import of_family
from world import serving

from ludus.train.trl_compat import GRPOTrainer
from train.trl_compat.scripted_rollouts import call

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> dict[str, Any]:
    """All names of a script after it has run; an option that is True has no value."""
    words = [
        word
        for option, value in options.items()
        for word in (f"--{option.replace('_', '-')}", *([] if value is True else [str(value)]))
    ]
    script = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    return runpy.run_path(str(script))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def test_environment_class_script_trains_on_a_ludus_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    with serving("reasoning_gym") as served:
        names = run(
            monkeypatch, "grpo_environment_factory", url=served.url, model=model,
            out=tmp_path / "out", steps=2, log_every=1, max_episode_tokens=8,
            cpu=True,
        )  # fmt: skip
        trainer = names["trainer"]
        for env in trainer.environments:
            env.client.close()
    logged = [line for line in trainer.state.log_history if "reward" in line]
    assert [line["step"] for line in logged] == [1, 2]
    assert all(0.0 <= line["rewards/reward_func/mean"] <= 1.0 for line in logged)


def test_legacy_rollout_func_script_trains_on_a_ludus_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path / "model", of_family("qwen2_5"))
    port = free_port()
    with serving("echo") as served:
        names = run(
            monkeypatch, "grpo_rollout_func", url=served.url, port=port, model=model,
            out=tmp_path / "out", tasks=8, max_tokens=8, log_every=1, cpu=True,
        )  # fmt: skip
        names["client"].close()
    trainer = names["trainer"]
    assert f"port {port}" in capsys.readouterr().err
    logged = [line for line in trainer.state.log_history if "reward" in line]
    assert [line["step"] for line in logged] == [1, 2]
    # The echo gives a tenth for each character, and eight tokens have some.
    assert all(0.0 < line["rewards/reward_from_env/mean"] <= 10.0 for line in logged)
    assert all(line["reward_std"] > 0.0 for line in logged)


def test_multi_environment_script_scores_each_environment_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = of_family("qwen3")
    model = saved(tmp_path / "model", tokenizer)

    def generate(
        trainer: Any, prompt_ids: list[list[int]], *_: Any, **__: Any
    ) -> tuple[list[list[int]], None]:
        """Play one turn of each environment, of which Echo gives every member another reward."""
        replies = []
        for number, prompt in enumerate(map(tokenizer.decode, prompt_ids)):
            if "<tool_response>" in prompt:
                reply = "Done."
            elif "Play Wordle" in prompt:
                reply = call("guess", word="arose") * 6
            elif "Play Catch" in prompt:
                reply = call("move", direction="stay")
            else:
                reply = call("echo_message", message="o" * (number + 1))
            replies.append(tokenizer(f"{reply}<|im_end|>")["input_ids"])
        return replies, None

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", generate)
    with serving("wordle") as wordle, serving("catch") as catch:
        names = run(
            monkeypatch, "grpo_multi_env", wordle_url=wordle.url, catch_url=catch.url,
            model=model, out=tmp_path / "out", steps=2, max_episode_tokens=900, cpu=True,
        )  # fmt: skip
        trainer = names["trainer"]
        for name in ("wordle", "catch"):
            for game in trainer._environment_pool[name]:
                game.client.close()
    json.dumps(trainer.state.log_history, allow_nan=False)
    logged = [line for line in trainer.state.log_history if "reward" in line]
    wordle_means, catch_means, echo_means = (
        [line[f"rewards/{name}/mean"] for line in logged]
        for name in ("wordle_reward", "catch_reward", "echo")
    )
    # Twelve attempts of a step are three groups: not every step has every environment.
    assert None in wordle_means + catch_means
    assert all(0.0 < mean < 0.5 for mean in wordle_means if mean is not None)
    assert {mean for mean in catch_means if mean is not None} == {0.0}
    assert all(0.1 <= mean <= 1.2 for mean in echo_means if mean is not None)
    assert any(line["grad_norm"] > 0.0 for line in logged)
