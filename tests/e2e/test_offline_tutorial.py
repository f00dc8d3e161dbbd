"""The code of NeMo Gym's offline tutorial, as it stands there, on files that Ludus wrote for it."""
# ruff: noqa: PTH123

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from policy.models import saved
from tiny_tokenizers import of_family

import ludus
from ludus.agents.scripted import RandomAgent
from ludus.curation import CurateConfig, curate


def filter_rollouts(input_file: str, output_file: str, min_reward: float = 0.8) -> int:
    kept, total = 0, 0
    with open(input_file) as f, open(output_file, "w") as out:
        for line in f:
            rollout = json.loads(line)
            total += 1
            if rollout.get("reward", 0) >= min_reward:
                out.write(line)
                kept += 1
    print(f"Kept {kept}/{total} rollouts ({kept / total * 100:.1f}%)")
    return kept


def rollouts_to_sft_dataset(rollout_file: str) -> Dataset:
    examples = []
    with open(rollout_file) as f:
        for line in f:
            rollout = json.loads(line)
            examples.append({"messages": rollout["output"]})
    return Dataset.from_list(examples)


def create_dpo_pairs(rollout_file: str, output_file: str, min_diff: float = 0.1) -> None:
    task_groups: dict[int, list[Any]] = {}
    with open(rollout_file) as f:
        for line in f:
            rollout = json.loads(line)
            task_id = hash(json.dumps(rollout["responses_create_params"]["input"]))
            if task_id not in task_groups:
                task_groups[task_id] = []
            task_groups[task_id].append(rollout)
    pairs = []
    for rollouts in task_groups.values():
        if len(rollouts) >= 2:
            rollouts.sort(key=lambda x: x["reward"], reverse=True)
            if rollouts[0]["reward"] - rollouts[1]["reward"] >= min_diff:
                pairs.append(
                    {
                        "prompt": rollouts[0]["responses_create_params"]["input"],
                        "chosen": rollouts[0]["output"],
                        "rejected": rollouts[1]["output"],
                    }
                )
    with open(output_file, "w") as out:
        for pair in pairs:
            out.write(json.dumps(pair) + "\n")


def compute_metrics(rollout_file: str) -> dict[str, float]:
    rewards = []
    with open(rollout_file) as f:
        for line in f:
            rollout = json.loads(line)
            rewards.append(rollout.get("reward", 0))
    return {
        "avg_reward": sum(rewards) / len(rewards),
        "success_rate": sum(1 for r in rewards if r >= 0.5) / len(rewards),
    }


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four sums, each solved once and guessed at once."""
    folder = tmp_path_factory.mktemp("gym")
    for name, agent in (("solved", None), ("guessed", RandomAgent())):
        config = ludus.CollectConfig(agent=agent, num_episodes=4)
        asyncio.run(ludus.collect("reasoning_gym:chain_sum", folder / name, config))
    curate([folder / "solved", folder / "guessed"], folder / "rows", CurateConfig(to="nemo-gym"))
    return str(folder / "rows" / "train.jsonl")


def test_rollouts_become_conversations_that_a_chat_template_takes(
    rollouts: str, tmp_path: Path
) -> None:
    filtered = str(tmp_path / "filtered_rollouts.jsonl")
    assert filter_rollouts(rollouts, filtered) == 4
    dataset = rollouts_to_sft_dataset(filtered)
    for example in dataset:
        roles = [message["role"] for message in example["messages"]]
        assert roles == ["system", "user", "assistant", "tool"]
    student = of_family("qwen2_5")
    call = dataset[0]["messages"][2]["tool_calls"][0]["function"]
    text = student.apply_chat_template(dataset[0]["messages"], tokenize=False)
    assert json.dumps({"name": call["name"], "arguments": call["arguments"]}) in text
    assert dataset[0]["messages"][1]["content"] in text
    metrics = compute_metrics(rollouts)
    assert metrics["success_rate"] == 0.5 and 0.5 <= metrics["avg_reward"] < 1


def test_the_conversations_are_trained_on_with_the_tutorials_config(
    rollouts: str, tmp_path: Path
) -> None:
    from ludus.train.trl_compat import SFTConfig, SFTTrainer

    model = saved(tmp_path / "model", of_family("qwen2_5"))
    config = SFTConfig(
        output_dir=str(tmp_path / "sft_output"),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        learning_rate=2e-5,
        logging_steps=10,
        save_steps=100,
        max_seq_length=2048,
        **{"use_cpu": True, "bf16": False, "report_to": "none", "dataloader_pin_memory": False},
    )
    assert config.max_length == 2048
    trainer = SFTTrainer(
        model=str(model),
        args=config,
        train_dataset=rollouts_to_sft_dataset(rollouts),
        processing_class=of_family("qwen2_5"),
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "sft_final"))
    assert (tmp_path / "sft_final" / "model.safetensors").is_file()


def test_two_rollouts_of_a_prompt_become_a_pair(rollouts: str, tmp_path: Path) -> None:
    create_dpo_pairs(rollouts, str(tmp_path / "pairs.jsonl"))
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == 4
    dataset = Dataset.from_list(pairs)
    for pair in dataset:
        asked = [message["content"] for message in pair["prompt"]]
        for side in ("chosen", "rejected"):
            assert [message["content"] for message in pair[side]][: len(asked)] == asked
        assert pair["chosen"] != pair["rejected"]
