"""Rollouts of TRL's loop end with their episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset

from ludus.train.trl_compat import GRPOConfig, GRPOTrainer
from train.trl_compat.scripted_rollouts import FAST_ARGS, call, chat_policy, encode_reply


class Asking:
    """An environment as tutorials write it: it says that it is done, and what it earned."""

    calls = 0
    calls_when_done = 0

    def reset(self, *, answers: int, **row: Any) -> str:
        self.answers_left, self.done, self.reward = answers, False, 0.0
        return "What is 1 + 1?"

    def answer(self, answer: str) -> str:
        """Answer the question.

        Args:
            answer: One number.
        """
        Asking.calls += 1
        Asking.calls_when_done += self.done
        self.answers_left -= 1
        self.done = self.answers_left == 0
        return "Noted."


def test_no_turn_is_generated_after_the_end_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, turns = chat_policy(), list[int]()

    def generate(
        trainer: Any, prompt_ids: list[list[int]], *_: Any, **__: Any
    ) -> tuple[list[list[int]], None]:
        turns.append(len(prompt_ids))
        return [encode_reply(policy, call("answer", answer="2")) for _ in prompt_ids], None

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", generate)
    rows = [{"prompt": [{"role": "user", "content": ""}], "answers": n} for n in (1, 3)]
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda completions, **_: [float(at) for at in range(len(completions))],
        args=GRPOConfig(
            str(tmp_path), max_steps=1, shuffle_dataset=False,
            **{**FAST_ARGS, "per_device_train_batch_size": 4},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
        environment_factory=Asking,
    )  # fmt: skip
    trainer.train()
    # Two members each of a task with one answer and of one with three.
    assert turns == [4, 2, 2]
    assert (Asking.calls, Asking.calls_when_done) == (8, 0)
