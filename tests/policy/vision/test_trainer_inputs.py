"""TRL's trainer computes the log-probabilities that the policy sampled with images."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ludus import connect
from ludus.data.episode import Episode
from ludus.errors import RunError
from ludus.policy.agent import PolicyAgent
from ludus.policy.load import Policy
from ludus.policy.vision.training_images import (
    drop_empty_image_inputs,
    episode_image_inputs,
    images_in_tokens,
)
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from policy.vision.image_env import GALLERY, taught

TEMPERATURE = 0.5
Inputs = dict[str, Any]


@pytest.fixture(
    scope="module", params=[pytest.param("qwen2_vl", marks=pytest.mark.slow), "qwen3_vl"]
)
def policy(request: pytest.FixtureRequest) -> Policy:
    return taught(request.param)


@pytest.fixture(scope="module")
def episodes(policy: Policy) -> list[Episode]:
    """Two with images, and one between them without."""
    return asyncio.run(_play(policy))


async def _play(policy: Policy) -> list[Episode]:
    tasks: list[tuple[str, dict[str, Any]]] = [
        (GALLERY, {"seed": 0}),
        ("world:Counter", {"goal": 3}),
        (GALLERY, {"seed": 1}),
    ]
    limits = EpisodeLimits(max_turns=3, max_tokens=40)
    episodes = []
    async with PolicyAgent(policy, temperature=TEMPERATURE) as agent:
        for spec, task in tasks:
            async with connect(spec).session() as session:
                episodes.append(
                    await run_episode(session, agent, Assignment.of(spec, **task), limits=limits)
                )
    return episodes


@pytest.fixture(scope="module")
def trainer(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> GRPOTrainer:
    model = deepcopy(policy.model)
    drop_empty_image_inputs(model)
    return _build_trainer(model, policy.tokenizer, tmp_path_factory.mktemp("out"))


def _build_trainer(model: Any, tokenizer: Any, out: Path) -> GRPOTrainer:
    args = GRPOConfig(
        str(out),
        per_device_train_batch_size=2,
        num_generations=2,
        temperature=TEMPERATURE,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
    )
    data = Dataset.from_list([{"prompt": "a"}] * 2)
    trainer_class: Any = GRPOTrainer
    trainer: GRPOTrainer = trainer_class(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
    )
    return trainer


def batch(policy: Policy, episodes: list[Episode]) -> Inputs:
    """Prompts padded on the left and completions on the right, as in TRL."""
    tokens = [episode.tokens for episode in episodes if episode.tokens]
    begins = [each.mask.index(1) for each in tokens]
    left, right = max(begins), max(len(e.ids) - b for e, b in zip(tokens, begins, strict=True))
    rows, attention_mask, loss_mask = [], [], []
    for each, begin in zip(tokens, begins, strict=True):
        before, after = left - begin, right - (len(each.ids) - begin)
        rows.append([0] * before + list(each.ids) + [0] * after)
        attention_mask.append([0] * before + [1] * len(each.ids) + [0] * after)
        loss_mask.append(([0] * before + list(each.mask) + [0] * after)[left:])
    return {
        "ids": torch.tensor(rows),
        "attention_mask": torch.tensor(attention_mask),
        "loss_mask": torch.tensor(loss_mask),
        "completion_length": right,
    }


@pytest.mark.slow
def test_the_trainer_computes_the_sampled_logprobs(
    policy: Policy, episodes: list[Episode], trainer: GRPOTrainer
) -> None:
    assert policy.vision is not None
    data = batch(policy, episodes)
    image_inputs = episode_image_inputs(policy.vision, episodes, data["ids"])
    assert image_inputs["num_images"] == [2, 0, 2], "in the prompt and between two replies"
    sampled = [
        value
        for each in episodes
        if each.tokens
        for value in each.tokens.logprobs
        if value is not None
    ]
    for size in (None, 1):
        with torch.no_grad():
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                data["ids"],
                data["attention_mask"],
                data["completion_length"],
                batch_size=size,
                **image_inputs,
            )
        assert logps[data["loss_mask"] == 1].tolist() == pytest.approx(sampled, abs=1e-3)


def test_other_images_give_other_logprobs(
    policy: Policy, episodes: list[Episode], trainer: GRPOTrainer
) -> None:
    assert policy.vision is not None
    data = batch(policy, episodes)
    image_inputs = episode_image_inputs(policy.vision, episodes, data["ids"])
    logps = []
    for pixels in (image_inputs["pixel_values"], -image_inputs["pixel_values"]):
        with torch.no_grad():
            values, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, data["ids"], data["attention_mask"], data["completion_length"],
                **{**image_inputs, "pixel_values": pixels},
            )  # fmt: skip
        logps.append(values[data["loss_mask"] == 1])
    assert (logps[0] - logps[1]).abs().max() > 0.05


def test_the_loss_reaches_the_vision_encoder(
    policy: Policy, episodes: list[Episode], trainer: GRPOTrainer
) -> None:
    assert policy.vision is not None and trainer.model is not None
    data = batch(policy, episodes)
    left = data["ids"].shape[1] - data["completion_length"]
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(
        trainer.model,
        {
            "prompt_ids": data["ids"][:, :left],
            "prompt_mask": data["attention_mask"][:, :left],
            "completion_ids": data["ids"][:, left:],
            "completion_mask": data["attention_mask"][:, left:],
            "tool_mask": data["loss_mask"],
            "advantages": torch.tensor([1.0, 0.5, -1.0]),
            "num_items_in_batch": data["loss_mask"].sum(),
            **episode_image_inputs(policy.vision, episodes, data["ids"]),
        },
    )
    loss.backward()
    eyes = [weight.grad for name, weight in trainer.model.named_parameters() if "visual" in name]
    assert any(grad is not None and grad.abs().max() > 0 for grad in eyes)


def test_trl_splits_the_images_by_rows_and_joins_them_again(
    policy: Policy, episodes: list[Episode]
) -> None:
    from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

    assert policy.vision is not None
    image_inputs = episode_image_inputs(policy.vision, episodes, batch(policy, episodes)["ids"])
    cut = split_pixel_values_by_grid(image_inputs)
    sizes = [
        sum(len(p.pixel_values) for p in images_in_tokens(policy.vision, each)) for each in episodes
    ]
    assert [len(row) for row in cut["pixel_values"]] == sizes
    assert torch.equal(
        unsplit_pixel_values_by_grid(cut)["pixel_values"], image_inputs["pixel_values"]
    )


def test_episodes_without_images_have_no_inputs(policy: Policy, episodes: list[Episode]) -> None:
    assert policy.vision is not None
    without_images = episodes[1:2]
    assert (
        episode_image_inputs(policy.vision, without_images, batch(policy, without_images)["ids"])
        == {}
    )


def test_images_that_the_model_has_not_seen_are_left_out(
    policy: Policy, episodes: list[Episode]
) -> None:
    assert policy.vision is not None
    whole = episodes[0]
    assert whole.tokens is not None
    first = whole.tokens.mask.index(1)
    cut = {name: getattr(whole.tokens, name)[: first + 1] for name in ("ids", "logprobs", "mask")}
    short = whole.model_copy(update={"tokens": whole.tokens.model_copy(update=cut)})
    assert len(images_in_tokens(policy.vision, short)) == 1


def test_tokens_that_do_not_match_the_images_are_rejected(
    policy: Policy, episodes: list[Episode]
) -> None:
    assert policy.vision is not None
    tokens = episodes[0].tokens
    assert tokens is not None
    more = (*tokens.ids, policy.vision.image_token_id)
    odd = episodes[0].model_copy(update={"tokens": tokens.model_copy(update={"ids": more})})
    with pytest.raises(RunError, match=odd.episode_id):
        images_in_tokens(policy.vision, odd)
