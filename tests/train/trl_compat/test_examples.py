"""The example scripts, with small models on real servers."""

from __future__ import annotations

import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved
from tiny_tokenizers import of_family
from world import serving

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
