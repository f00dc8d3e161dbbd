"""Local models as candidates: a few thousand weights that were never trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from policy.models import adapted, saved
from tiny_tokenizers import of_family, student

from evaluation.small_evaluations import COUNTER, quick_config
from ludus.errors import ConfigError, LudusError, RunError
from ludus.evaluation import Evaluation, evaluate, parse_candidates
from ludus.evaluation.candidates import check_local_models
from ludus.policy.agent_factory import AgentConfig
from ludus.rollout.progress import ignore_progress

CONFIG = quick_config(num_episodes=3, max_turns=2, max_tokens=8)


async def evaluate_against_random(model: Path, out: Path) -> Evaluation:
    candidates = parse_candidates(["random", f"base=hf:{model}"])
    return await evaluate(COUNTER, candidates, out, CONFIG)


async def test_local_model_plays_greedily_and_counts_tokens(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    evaluation = await evaluate_against_random(model, tmp_path / "eval")
    chance, base = evaluation.scores
    assert base.metrics["cut_off"].value == 1.0, "it never learned to end a reply"
    assert "format_compliance" not in base.metrics, "no reply was complete"
    assert 1.0 <= base.metrics["reply_tokens"].value <= 8.0
    assert "reply_tokens" not in chance.metrics and "reply_tokens" not in base.deltas
    about = json.loads((tmp_path / "eval" / "base" / "run.json").read_text())
    assert about["settings"]["agent"]["temperature"] == 0.0
    (model / "config.json").unlink()
    again = await evaluate_against_random(model, tmp_path / "eval")
    assert again.scores == evaluation.scores, "who has played is not loaded again"


async def test_changed_weights_are_another_run(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    await evaluate_against_random(model, tmp_path / "eval")
    saved(model, of_family("qwen3"), seed=1)
    shutil.rmtree(tmp_path / "eval" / "random")
    with pytest.raises(RunError, match=r"base .*\n  agent\.weights"):
        await evaluate_against_random(model, tmp_path / "eval")
    assert not (tmp_path / "eval" / "random").exists(), "nobody plays before that is said"


def remove_config(model: Path) -> None:
    (model / "config.json").unlink()


def remove_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def remove_tokenizer(model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()


def remove_chat_template(model: Path) -> None:
    student(None).save_pretrained(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (remove_config, AgentConfig(), "holds no config.json"),
        (remove_weights, AgentConfig(), "holds no weights"),
        (remove_tokenizer, AgentConfig(), "holds no tokenizer"),
        (remove_chat_template, AgentConfig(), "no chat template"),
        (None, AgentConfig(device="gpu"), "Unknown device 'gpu'"),
        (None, AgentConfig(dtype="float3"), "Unknown dtype 'float3'"),
    ],
)
async def test_unusable_model_is_rejected_before_anyone_plays(
    tmp_path: Path, spoil: Callable[[Path], None] | None, options: AgentConfig, words: str
) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    if spoil is not None:
        spoil(model)
    candidates = parse_candidates(["random", f"base=hf:{model}"], options)
    with pytest.raises(LudusError) as refused:
        await evaluate(COUNTER, candidates, tmp_path / "eval", CONFIG)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "eval").exists()


async def test_incomplete_candidate_is_checked_again(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    await evaluate_against_random(model, tmp_path / "eval")
    remove_config(model)
    candidates = parse_candidates(["random", f"base=hf:{model}"])
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        await evaluate(COUNTER, candidates, tmp_path / "eval", replace(CONFIG, num_episodes=4))
    recorded = (tmp_path / "eval" / "random" / "episodes.jsonl").read_text().splitlines()
    assert len(recorded) == 3, "nobody plays before that is said"


async def test_adapter_is_checked_with_its_base(tmp_path: Path) -> None:
    base = saved(tmp_path / "model", of_family("qwen3"))
    adapter = adapted(tmp_path / "adapter", base)
    candidates = parse_candidates([f"hf:{adapter}"])
    await check_local_models(candidates, ignore_progress)
    remove_weights(base)
    with pytest.raises(ConfigError, match="model holds no weights"):
        await check_local_models(candidates, ignore_progress)


async def test_unknown_template_argument_is_rejected_before_anyone_plays(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", of_family("qwen2_5"))
    options = AgentConfig(chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(ConfigError, match="'enable_thinking'"):
        candidates = parse_candidates(["random", f"hf:{model}"], options)
        await evaluate(COUNTER, candidates, tmp_path / "eval", CONFIG)
    assert not (tmp_path / "eval").exists()


async def test_missing_model_is_rejected_before_anyone_plays(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no model"):
        await evaluate_against_random(tmp_path / "nowhere", tmp_path / "eval")
    assert not (tmp_path / "eval").exists()
