"""Scoring of a training step's rows, row by row and with a shared prompt prefix per group.

    python benchmarks/grpo_prefix_sharing.py [--prompt 163] [--reply 32] [--groups 1]
                                             [--group-size 8]

A random model of SmolLM2-135M's shape runs forward and backward over the same rows both ways, in
float32 on a CPU and in bf16 on a GPU; the best of three runs is shown. `--layers` shortens it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    import torch

    args = _parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _build_model(args.layers).to(device)
    ids, mask = (each.to(device) for each in _build_rows(args))
    variants = {
        "rows": _score_by_row(model, ids, mask, args.reply),
        "trees": _score_by_tree(model, ids, mask, args.reply),
    }
    print(f"{device}, {torch.get_num_threads()} threads, {args.layers} layers")
    print(f"\n{'':8}{'tokens':>8}{'seconds':>10}")
    for name, (tokens, score) in variants.items():
        print(f"{name:8}{tokens:8,}{_best_seconds(model, score, device):10.3f}", flush=True)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", type=int, default=163)
    parser.add_argument("--reply", type=int, default=32)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--layers", type=int, default=30)
    return parser.parse_args()


def _build_model(layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def _build_rows(args: argparse.Namespace) -> tuple[Any, Any]:
    """Token ids and attention mask; completions have slightly different lengths."""
    import torch

    prompts = torch.randint(3, 49152, (args.groups, args.prompt))
    count = args.groups * args.group_size
    replies = torch.randint(3, 49152, (count, args.reply))
    ids = torch.cat([prompts.repeat_interleave(args.group_size, 0), replies], 1)
    mask = torch.ones_like(ids)
    for row in range(count):
        mask[row, ids.shape[1] - row % 4 :] = 0
    return ids, mask


def _score_by_row(model: Any, ids: Any, mask: Any, reply: int) -> tuple[int, Callable[[], Any]]:
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-reply] = -100

    def score() -> Any:
        output = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        return output.log_probs

    return ids.numel(), score


def _score_by_tree(model: Any, ids: Any, mask: Any, reply: int) -> tuple[int, Callable[[], Any]]:
    from ludus.train.grpo.prefix_sharing import score_trees
    from ludus.train.grpo.prefix_tree import build_trees

    trees = build_trees(ids, mask, reply, width=model.config.hidden_size)
    if trees is None:
        raise SystemExit("Prefix sharing would save nothing here.")

    def score() -> Any:
        return score_trees(model, trees)[0]

    return trees.input_ids.numel(), score


def _best_seconds(model: Any, score: Callable[[], Any], device: str) -> float:
    import torch

    from ludus.train.acceleration import skip_unlabelled_logits

    best = float("inf")
    for _ in range(3):
        model.zero_grad()
        start = time.perf_counter()
        with (
            torch.autocast(device, torch.bfloat16, enabled=device == "cuda"),
            skip_unlabelled_logits(),
        ):
            logps = score()
        logps.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
