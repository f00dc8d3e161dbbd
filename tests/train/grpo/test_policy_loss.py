"""The loss of a step is TRL's, however its episodes are divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig as TRLConfig
from trl import GRPOTrainer as TRLTrainer

from ludus.errors import ConfigError
from ludus.train.grpo.policy_loss import LOSS_TYPES, PolicyLoss
from ludus.train.grpo.step_batch import choose_evenly, spread_over_tokens

ROWS, LENGTH, BUDGET = 6, 12, 16


@pytest.fixture(scope="module")
def trainer(model: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = TRLConfig(
        output_dir=str(model / "unused"), use_cpu=True, bf16=False, report_to=[],
        per_device_train_batch_size=ROWS, num_generations=2, max_completion_length=BUDGET,
    )  # fmt: skip
    trainer: Any = TRLTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        args=config, train_dataset=Dataset.from_dict({"prompt": ["x"] * 4}),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1  # Set where training starts.
    return trainer


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in LOSS_TYPES),
        ("dapo", {"epsilon_high": 0.4, "delta": 1.5}),
        ("grpo", {"importance_sampling_level": "sequence"}),
        ("dapo", {"beta": 0.1}),
        ("cispo", {"epsilon_high": 2.0}),
    ],
)
def test_it_is_the_loss_of_trl(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, kind: str, changes: dict[str, Any]
) -> None:
    rng = torch.Generator().manual_seed(1)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=rng)

    lengths = torch.tensor([12, 3, 7, 1, 9, 5])
    completion_mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    # Tokens of the environment, and a whole row without a signal.
    mask = completion_mask * torch.tensor([1, 1, 0, 1] * 3)
    logprobs = (-3 * rand(ROWS, LENGTH)).requires_grad_()
    sampling = logprobs.detach() + 0.6 * (rand(ROWS, LENGTH) - 0.5)
    reference = logprobs.detach() + 0.6 * (rand(ROWS, LENGTH) - 0.5)
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.5, -2.0, 1.5])
    inputs = {
        "prompt_ids": torch.ones(ROWS, 1, dtype=torch.long), "prompt_mask": torch.ones(ROWS, 1),
        "completion_ids": torch.ones(ROWS, LENGTH, dtype=torch.long),
        "completion_mask": completion_mask, "tool_mask": torch.tensor([1, 1, 0, 1] * 3)[None],
        "advantages": advantages, "old_per_token_logps": sampling,
        "ref_per_token_logps": reference, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    settings = {"loss_type": kind, "beta": 0.0, "importance_sampling_level": "token", **changes}
    for name, value in settings.items():
        for owner in (trainer, trainer.args):
            monkeypatch.setattr(owner, name, value, raising=False)
    ours = PolicyLoss.from_trl(trainer.args)
    monkeypatch.setattr(trainer, "epsilon_high", ours.epsilon_high)
    monkeypatch.setattr(
        trainer, "_get_per_token_logps_and_entropies",
        lambda *_, **__: (logprobs, torch.zeros(ROWS, LENGTH), None),
    )  # fmt: skip
    trainer.model.train()
    expected = trainer._compute_loss(trainer.model, inputs)
    (expected_gradient,) = torch.autograd.grad(expected, logprobs, retain_graph=True)

    counts = mask.sum(1).float()
    weights = ours.episode_weights(
        counts, torch.ones(ROWS), total_tokens=float(counts.sum()), total_episodes=ROWS,
        max_tokens=BUDGET,
    )  # fmt: skip
    total = torch.zeros(())
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        sampled = mask[rows].bool()
        index = torch.arange(ROWS)[rows, None].expand_as(sampled)[sampled]
        losses = ours(
            logprobs[rows][sampled], sampling[rows][sampled], advantages[index], index,
            reference[rows][sampled] if ours.beta else None,
        )  # fmt: skip
        total = total + (losses * weights[index]).sum()
    (gradient,) = torch.autograd.grad(total, logprobs)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert gradient.abs().max() > 0


def test_episodes_that_are_not_counted_have_no_weight() -> None:
    weights = PolicyLoss("grpo").episode_weights(
        torch.tensor([2.0, 4.0]), torch.tensor([1.0, 0.0]), total_tokens=2, total_episodes=1,
        max_tokens=8,
    )  # fmt: skip
    assert weights.tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("name", "value"), [("loss_type", "vespo"), ("entropy_coef", 0.1), ("num_iterations", 2)]
)
def test_what_is_not_implemented_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    config = TRLConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    setattr(config, name, value)
    with pytest.raises(ConfigError, match=name):
        PolicyLoss.from_trl(config)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), [0, 0, 0, 0]),
        ((3.0,), [3, 3, 3, 3]),
        ((3.0, 5.0), [3, 3, 5, 0]),
        ((3.0, 5.0, 7.0), [3, 3, 5, 7]),
    ],
)
def test_tokens_have_the_advantage_of_their_turn(
    values: tuple[float, ...], expected: list[float]
) -> None:
    mask = [0, 1, 1, 0, 0, 1, 0, 1, 0]
    assert list(spread_over_tokens(values, mask)) == expected
    assert list(spread_over_tokens(values, [0, 0])) == []


def test_flags_are_spread_evenly() -> None:
    assert choose_evenly(3, 5) == [True] * 3
    assert choose_evenly(8, 4) == [False, True] * 4
    assert sum(choose_evenly(1000, 256)) == 256
