"""The gradient of a GRPO step, with its episodes as padded rows and packed by groups.

    python benchmarks/grpo_packing.py [--groups 8] [--group-size 8] [--prompt 163] [--reply 32]
                                      [--turns 1]

A random model of SmolLM2-135M's shape (`--layers` shortens it), in float32 on a CPU and in bf16
with compiled layers on a GPU; the best of four runs. Tokens are those of all episodes with their
prompts, computed or not.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING, Any

from ludus.train.grpo.packed_groups import EpisodeTokens, packed_length

if TYPE_CHECKING:
    from benchmarks.random_model import smollm2_shape
else:
    from random_model import smollm2_shape

OBSERVATION_TOKENS = 20


def main() -> None:
    import torch
    from accelerate import Accelerator
    from transformers import LlamaForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    from ludus.train.acceleration import compile_layers, skip_unlabelled_logits
    from ludus.train.grpo.logprobs import Layout, LogprobScorer

    args = _parse_args()
    gpu = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="bf16" if gpu else "no")
    config = smollm2_shape(bos_token_id=1)
    config.num_hidden_layers = args.layers
    model = LlamaForCausalLM(config).to(accelerator.device)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    model.train()
    if gpu:
        compile_layers(model, dynamic=True)
    episodes = _build_episodes(args)
    size = args.episodes_at_once or len(episodes)
    parts = [episodes[at : at + size] for at in range(0, len(episodes), size)]
    tokens = sum(len(each.ids) for each in episodes)
    print(f"{len(episodes)} episodes of {tokens:,} tokens, {packed_length(episodes):,} packed")
    print(f"\n{'':32}{'seconds':>10}{'tokens/s':>12}")
    layouts = [Layout.PADDED, Layout.FLASH if gpu else Layout.MASKED]
    for layout in layouts:
        scorer = LogprobScorer(model, layout, accelerator, 0, checked=True)
        with skip_unlabelled_logits():
            seconds = min(_time_gradient(scorer, parts) for _ in range(4))
        print(f"{layout.value:32}{seconds:10.3f}{tokens / seconds:12,.0f}", flush=True)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=163)
    parser.add_argument("--reply", type=int, default=32)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--episodes-at-once", type=int, help="default: all")
    return parser.parse_args()


def _build_episodes(args: argparse.Namespace) -> list[EpisodeTokens]:
    rng = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(3, 40_000), k=count))

    episodes = []
    for _ in range(args.groups):
        prompt = tokens(args.prompt)
        for _ in range(args.group_size):
            ids, sampled = prompt, (0,) * len(prompt)
            for turn in range(args.turns):
                reply = rng.randint(args.reply // 2, args.reply * 3 // 2)
                observation = OBSERVATION_TOKENS * bool(turn)
                ids += tokens(observation + reply)
                sampled += (0,) * observation + (1,) * reply
            episodes.append(EpisodeTokens(ids, sampled, (-1.0,) * sum(sampled)))
    return episodes


def _time_gradient(scorer: Any, parts: list[list[EpisodeTokens]]) -> float:
    import torch

    scorer.model.zero_grad()
    start = time.perf_counter()
    for part in parts:
        with scorer.score(part) as scores:
            scores.logprobs.sum().backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
