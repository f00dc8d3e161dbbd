"""The recipes that ship, in reduced size: tiny models under the same names, few steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from chat_stub import Stub, chat_stub, sensible
from policy.models import saved
from tiny_tokenizers import of_family

from ludus.policy import smollm2

_EVAL = ("eval.num_episodes=4", "eval.max_tokens=8", "eval.max_turns=2")
_GRPO = (
    *("grpo.steps=1", "grpo.groups=2", "grpo.group_size=2", "grpo.max_episode_tokens=16"),
    *("grpo.max_turns=2", "grpo.eval_every=1", "grpo.eval_episodes=2"),
)
_SFT = ("sft.epochs=1", "sft.batch_size=4")
_TEACHER = ("collect.agent=openai:gpt-5-mini",)
REDUCED: Mapping[str, tuple[str, ...]] = {
    "quickstart": ("collect.num_episodes=40", "sft.steps=2", *_EVAL),
    "chain-sum": ("collect.num_episodes=20", "collect.prices=prices.json", *_SFT, *_GRPO, *_EVAL),
    "wordle": (
        *("tutor.rounds=1", "tutor.episodes=4", "tutor.eval_episodes=2", "tutor.epochs=1"),
        *("tutor.max_tokens=8", "tutor.max_turns=2", "tutor.batch_size=2"),
        *_GRPO,
        *_EVAL,
    ),
    "multi-env": ("collect.num_episodes=16", *_SFT, *_GRPO, *_EVAL),
    # A model that plays by chance would give no pairs: a teacher that is wrong at times does.
    "offline-dpo": (
        *("collect.num_episodes=24", *_TEACHER, *_SFT, "dpo.batch_size=2"),
        *_EVAL,
    ),
}
TAUGHT = ("chain-sum", "offline-dpo")
"""Recipes in which an API plays, which needs --set collect.llm_endpoint here."""


def save_models(cache: Path, folder: Path) -> None:
    """Tiny models under the names in the recipes: SmolLM2 in a cache, the others in a folder.

    For the API that stands in for the teacher, also prices.
    """
    tiny = of_family("qwen3")
    saved(cache / smollm2.release_id(), tiny)
    for name in ("Qwen3-1.7B", "Qwen2.5-1.5B-Instruct"):
        saved(folder / "Qwen" / name, tiny)
    prices = {"gpt-5-mini": {"input": 0.25, "output": 2.0}}
    (folder / "prices.json").write_text(json.dumps(prices))


@contextmanager
def unsteady_teacher() -> Iterator[Stub]:
    """An API whose every third answer is wrong, also to a question that it has answered before."""
    calls = count()

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        answer = sensible(request)
        if next(calls) % 3 == 0:
            answer["tool_calls"][0]["function"]["arguments"] = json.dumps({"answer": "-1"})
        return answer

    with chat_stub(reply) as stub:
        yield stub


def set_flags(overrides: tuple[str, ...]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]
