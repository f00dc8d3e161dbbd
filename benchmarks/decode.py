"""Decoding speed on one GPU: transformers' `generate`, the Triton engine, and the memory bound.

    python benchmarks/decode.py [--prompt 330] [--tokens 128] [--rows 64 256] [--kernels]
                                [--live] [--model NAME]

Without --model, the model is random, of SmolLM2-135M's shape, in bfloat16; nothing is downloaded.
In a random model many tokens are almost equally likely, so greedy completions diverge where two
logits are closer than bfloat16 resolves; the gap is shown. The time of a step is the cost of
additional tokens, without prefill and graph capture. The floor is one read of all weights and of
the KV cache at the measured memory bandwidth of an H200. `--kernels` profiles a step, and `--live`
measures decoding while episodes are played.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.decode_live import GROUP, measure_live
    from benchmarks.gpu_check import require_gpu
    from benchmarks.random_model import smollm2_shape
else:
    from decode_live import GROUP, measure_live
    from gpu_check import require_gpu
    from random_model import smollm2_shape

H200_BANDWIDTH = 4.2e12
"""Bytes per second."""
SHORT_TOKENS = 8
"""Tokens of the short run that is subtracted from the long one."""
NUM_COMPARED = 8
"""Rows that are compared with transformers."""


def main() -> None:
    import torch

    args = _parse_args()
    require_gpu()
    model = _load_model(args.model)
    model.generation_config.eos_token_id = None  # All completions have the full length.
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prompts of {args.prompt}")
    print(f"\n{'':28}{'rows':>6}{'ms/step':>10}{'tokens/s':>12}{'with prompts':>14}{'floor':>8}")
    engine = _build_engine(model, args.rows)
    for rows in args.rows:
        prompts = _random_prompts(rows, args.prompt)
        floor = _memory_bound_s(model, rows, args.prompt + args.tokens // 2)
        _print_row("generate", rows, _time_steps(partial(_generate, model, prompts), 40), floor)
        triton = _time_steps(partial(_run_engine, engine, prompts), args.tokens)
        _print_row("Triton engine", rows, triton, floor)
    _time_groups(engine, args)
    _compare(model, engine, args)
    if args.live:
        measure_live(engine, [ids for ids in _random_prompts(8, args.prompt) for _ in range(GROUP)])
    if args.kernels:
        _profile(engine, args)
    _compare_float32(model, args)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", type=int, default=330)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--model")
    return parser.parse_args()


def _load_model(name: str | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if name is not None:
        from ludus.policy.load import load_model

        return load_model(name, device="cuda", dtype="bfloat16")
    config = smollm2_shape(initializer_range=0.05)
    torch.manual_seed(0)
    # Not cast afterwards, because that would round the rotary frequencies too.
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()


def _random_prompts(rows: int, length: int) -> list[tuple[int, ...]]:
    import torch

    generator = torch.Generator().manual_seed(rows)
    ids: list[list[int]] = torch.randint(3, 49152, (rows, length), generator=generator).tolist()
    return [tuple(each) for each in ids]


def _build_engine(model: Any, rows: Sequence[int], **options: Any) -> Any:
    from ludus.policy.triton_engine.triton_engine import TritonEngine, build_triton_engine

    start = time.perf_counter()
    engine = build_triton_engine(model, max_batch=max(rows), **options)
    if not isinstance(engine, TritonEngine):
        raise SystemExit(f"no Triton engine: {engine}")
    # Long enough for the turns of `--live`.
    print(f"{'engine built and tested in':28}{time.perf_counter() - start:22.1f} s")
    return engine


def _generate(model: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> Any:
    import torch

    ids = torch.tensor(prompts, device="cuda")
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=True)


def _run_engine(
    engine: Any, prompts: Sequence[tuple[int, ...]], tokens: int, *, temperature: float = 1.0
) -> list[Any]:
    from ludus.policy.engine.engine_api import Completion, Request
    from ludus.policy.engine.sampling import SamplingParams

    engine.refresh()  # Clears the prefix cache.
    completions: dict[int, Completion] = {}
    sampling = SamplingParams(temperature)
    requests = [Request(ids, tokens, (), sampling, seed) for seed, ids in enumerate(prompts)]
    engine.run(requests, completions.__setitem__)
    return [completions[index] for index in range(len(prompts))]


def _time_steps(run: Callable[[int], Any], tokens: int) -> tuple[float, float, int]:
    """Seconds of a step, seconds of the whole run, and its tokens per row."""
    run(SHORT_TOKENS), run(tokens)
    short, long = _best_seconds(lambda: run(SHORT_TOKENS)), _best_seconds(lambda: run(tokens))
    return (long - short) / (tokens - SHORT_TOKENS), long, tokens


def _best_seconds(run: Callable[[], Any]) -> float:
    import torch

    best = float("inf")
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def _print_row(name: str, rows: int, timing: tuple[float, float, int], floor: float) -> None:
    step, whole, tokens = timing
    print(
        f"{name:28}{rows:6}{1000 * step:10.3f}{rows / step:12,.0f}{rows * tokens / whole:14,.0f}"
        f"{1000 * floor:8.3f}",
        flush=True,
    )


def _memory_bound_s(model: Any, rows: int, length: int) -> float:
    """Seconds to read the weights and the KV cache of all rows once."""
    config = model.config
    weight_bytes = sum(weight.numel() for weight in model.parameters()) * 2
    heads = config.num_key_value_heads * config.head_dim
    cache_bytes = rows * length * config.num_hidden_layers * heads * 2 * 2
    return float((weight_bytes + cache_bytes) / H200_BANDWIDTH)


def _time_groups(engine: Any, args: argparse.Namespace) -> None:
    prompts = [ids for ids in _random_prompts(8, args.prompt) for _ in range(GROUP)]
    _run_engine(engine, prompts, args.tokens)
    seconds = _best_seconds(lambda: _run_engine(engine, prompts, args.tokens))
    print(f"8 groups of 8, {args.tokens} tokens, with a weight refresh: {seconds:.3f} s")


def _compare(model: Any, engine: Any, args: argparse.Namespace) -> None:
    """Greedy completions against `generate`, and logprobs against full forward passes."""
    prompts = _random_prompts(NUM_COMPARED, args.prompt)
    greedy = _run_engine(engine, prompts, 32, temperature=0.0)
    _print_equal("bfloat16", model, prompts, greedy)
    agreement, _, _ = _compare_with_forward(model, prompts, greedy)
    _, engine_error, model_error = _compare_with_forward(
        model, prompts, _run_engine(engine, prompts, 64)
    )
    print(f"greedy tokens that are the argmax of a full forward pass: {agreement:.1%}")
    print(
        f"largest |logprob - float32 forward|: Triton engine {engine_error:.4f}, "
        f"bfloat16 forward {model_error:.4f}"
    )


def _compare_float32(model: Any, args: argparse.Namespace) -> None:
    """The same in float32, where near-ties of logits are rare."""
    import torch

    prompts = _random_prompts(NUM_COMPARED, args.prompt)
    engine = _build_engine(model.float(), [NUM_COMPARED], dtype=torch.float32)
    _print_equal("float32", model, prompts, _run_engine(engine, prompts, 32, temperature=0.0))


def _print_equal(
    dtype: str, model: Any, prompts: Sequence[tuple[int, ...]], greedy: Sequence[Any]
) -> None:
    import torch

    ids = torch.tensor(prompts, device="cuda")
    mask = torch.ones_like(ids)
    output = model.generate(ids, attention_mask=mask, max_new_tokens=32, do_sample=False)
    expected = output[:, ids.shape[1] :].tolist()
    gaps = [
        gap
        for ids, row, completion in zip(prompts, expected, greedy, strict=True)
        if (gap := _logit_gap(model, ids, row, completion.ids)) is not None
    ]
    print(
        f"greedy completions equal to generate's in {dtype}: "
        f"{NUM_COMPARED - len(gaps)} of {NUM_COMPARED}",
        end="",
    )
    print(f"; where they diverge, logits differ by at most {max(gaps):.4f}" if gaps else "")


def _logit_gap(
    model: Any, ids: Sequence[int], expected: Sequence[int], actual: Sequence[int]
) -> float | None:
    """The difference of the float32 logits at the first token that differs; None if none does."""
    import torch

    pairs = enumerate(zip(expected, actual, strict=True))
    index = next((index for index, (a, b) in pairs if a != b), None)
    if index is None:
        return None
    with torch.inference_mode():
        prefix = torch.tensor([[*ids, *actual[:index]]], device="cuda")
        logits = deepcopy(model).float()(prefix).logits[0, -1]
    return float((logits[expected[index]] - logits[actual[index]]).abs())


def _compare_with_forward(
    model: Any, prompts: Sequence[tuple[int, ...]], completions: Sequence[Any]
) -> tuple[float, float, float]:
    """Share of argmax tokens; largest logprob error of the engine, and of the bfloat16 model."""
    import torch

    sequences = torch.tensor(
        [[*ids, *each.ids] for ids, each in zip(prompts, completions, strict=True)], device="cuda"
    )
    start = len(prompts[0])
    tokens = sequences[:, start:].unsqueeze(2)
    with torch.inference_mode():
        half = model(sequences).logits[:, start - 1 : -1].float()
        full = deepcopy(model).float()(sequences).logits[:, start - 1 : -1]
    agreement = (half.argmax(-1) == tokens.squeeze(2)).float().mean().item()
    half, full = (each.log_softmax(-1).gather(2, tokens).squeeze(2) for each in (half, full))
    actual = torch.tensor([each.logprobs for each in completions], device="cuda")
    return agreement, (actual - full).abs().max().item(), (half - full).abs().max().item()


def _profile(engine: Any, args: argparse.Namespace) -> None:
    from torch.profiler import ProfilerActivity, profile

    prompts = _random_prompts(64, args.prompt)
    _run_engine(engine, prompts, 32)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _run_engine(engine, prompts, 32)
    print(
        profiler.key_averages().table(
            sort_by="cuda_time_total", row_limit=16, max_name_column_width=40
        )
    )


if __name__ == "__main__":
    main()
