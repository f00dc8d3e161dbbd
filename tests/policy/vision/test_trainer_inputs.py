"""What TRL's trainer computes from an episode with pictures is what the policy sampled."""

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
from ludus.policy.vision.trainer_inputs import (
    allow_batches_without_images,
    episode_image_inputs,
    images_in_tokens,
)
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from policy.vision.image_env import GALLERY, taught

TEMPERATURE = 0.5
Given = dict[str, Any]


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen3_vl"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return taught(request.param)


@pytest.fixture(scope="module")
def episodes(policy: Policy) -> list[Episode]:
    """Two with pictures, and one between them without."""
    return asyncio.run(_played(policy))


async def _played(policy: Policy) -> list[Episode]:
    tasks: list[tuple[str, dict[str, Any]]] = [
        (GALLERY, {"seed": 0}),
        ("world:Counter", {"goal": 3}),
        (GALLERY, {"seed": 1}),
    ]
    limits = EpisodeLimits(max_turns=3, max_tokens=40)
    made = []
    async with PolicyAgent(policy, temperature=TEMPERATURE) as agent:
        for spec, task in tasks:
            async with connect(spec).session() as session:
                made.append(
                    await run_episode(session, agent, Assignment.of(spec, **task), limits=limits)
                )
    return made


@pytest.fixture(scope="module")
def trainer(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> GRPOTrainer:
    model = deepcopy(policy.model)
    allow_batches_without_images(model)
    return _trainer(model, policy.tokenizer, tmp_path_factory.mktemp("out"))


def _trainer(model: Any, tokenizer: Any, out: Path) -> GRPOTrainer:
    settings = GRPOConfig(
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
    make: Any = GRPOTrainer
    made: GRPOTrainer = make(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=data,
        processing_class=tokenizer,
    )
    return made


def batch(policy: Policy, episodes: list[Episode]) -> Given:
    """Prompts padded on their left and completions on their right, as TRL has them."""
    tokens = [episode.tokens for episode in episodes if episode.tokens]
    begins = [each.mask.index(1) for each in tokens]
    left, right = max(begins), max(len(e.ids) - b for e, b in zip(tokens, begins, strict=True))
    rows, real, own = [], [], []
    for each, begin in zip(tokens, begins, strict=True):
        before, after = left - begin, right - (len(each.ids) - begin)
        rows.append([0] * before + list(each.ids) + [0] * after)
        real.append([0] * before + [1] * len(each.ids) + [0] * after)
        own.append(([0] * before + list(each.mask) + [0] * after)[left:])
    return {
        "ids": torch.tensor(rows),
        "real": torch.tensor(real),
        "own": torch.tensor(own),
        "kept": right,
    }


def test_sampled_logprobs_are_those_of_the_trainer(
    policy: Policy, episodes: list[Episode], trainer: GRPOTrainer
) -> None:
    assert policy.vision is not None
    made = batch(policy, episodes)
    given = episode_image_inputs(policy.vision, episodes, made["ids"])
    assert given["num_images"] == [2, 0, 2], "in the prompt, and between two replies"
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
                trainer.model, made["ids"], made["real"], made["kept"], batch_size=size, **given
            )
        assert logps[made["own"] == 1].tolist() == pytest.approx(sampled, abs=1e-3)


def test_a_trainer_that_is_given_other_pictures_finds_other_logprobs(
    policy: Policy, episodes: list[Episode], trainer: GRPOTrainer
) -> None:
    assert policy.vision is not None
    made = batch(policy, episodes)
    given = episode_image_inputs(policy.vision, episodes, made["ids"])
    logps = []
    for pixels in (given["pixel_values"], -given["pixel_values"]):
        with torch.no_grad():
            found, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, made["ids"], made["real"], made["kept"],
                **{**given, "pixel_values": pixels},
            )  # fmt: skip
        logps.append(found[made["own"] == 1])
    assert (logps[0] - logps[1]).abs().max() > 0.05


def test_the_trainers_loss_reaches_the_eyes(
    policy: Policy, episodes: list[Episode], trainer: GRPOTrainer
) -> None:
    assert policy.vision is not None and trainer.model is not None
    made = batch(policy, episodes)
    left = made["ids"].shape[1] - made["kept"]
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(
        trainer.model,
        {
            "prompt_ids": made["ids"][:, :left],
            "prompt_mask": made["real"][:, :left],
            "completion_ids": made["ids"][:, left:],
            "completion_mask": made["real"][:, left:],
            "tool_mask": made["own"],
            "advantages": torch.tensor([1.0, 0.5, -1.0]),
            "num_items_in_batch": made["own"].sum(),
            **episode_image_inputs(policy.vision, episodes, made["ids"]),
        },
    )
    loss.backward()
    eyes = [weight.grad for name, weight in trainer.model.named_parameters() if "visual" in name]
    assert any(grad is not None and grad.abs().max() > 0 for grad in eyes)


def test_trl_cuts_pictures_up_by_rows_and_puts_them_together_again(
    policy: Policy, episodes: list[Episode]
) -> None:
    from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

    assert policy.vision is not None
    given = episode_image_inputs(policy.vision, episodes, batch(policy, episodes)["ids"])
    cut = split_pixel_values_by_grid(given)
    sizes = [
        sum(len(p.pixel_values) for p in images_in_tokens(policy.vision, each)) for each in episodes
    ]
    assert [len(row) for row in cut["pixel_values"]] == sizes
    assert torch.equal(unsplit_pixel_values_by_grid(cut)["pixel_values"], given["pixel_values"])


def test_where_nothing_was_seen_nothing_is_given(policy: Policy, episodes: list[Episode]) -> None:
    assert policy.vision is not None
    blind = episodes[1:2]
    assert episode_image_inputs(policy.vision, blind, batch(policy, blind)["ids"]) == {}


def test_a_picture_that_the_model_was_not_shown_is_left_out(
    policy: Policy, episodes: list[Episode]
) -> None:
    assert policy.vision is not None
    whole = episodes[0]
    assert whole.tokens is not None
    first = whole.tokens.mask.index(1)
    cut = {name: getattr(whole.tokens, name)[: first + 1] for name in ("ids", "logprobs", "mask")}
    short = whole.model_copy(update={"tokens": whole.tokens.model_copy(update=cut)})
    assert len(images_in_tokens(policy.vision, short)) == 1


def test_tokens_of_other_eyes_are_one_line(policy: Policy, episodes: list[Episode]) -> None:
    assert policy.vision is not None
    tokens = episodes[0].tokens
    assert tokens is not None
    more = (*tokens.ids, policy.vision.image_token_id)
    odd = episodes[0].model_copy(update={"tokens": tokens.model_copy(update={"ids": more})})
    with pytest.raises(RunError, match="and its pictures do not belong together"):
        images_in_tokens(policy.vision, odd)
