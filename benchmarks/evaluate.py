"""Evaluating a local model: `ludus.evaluate` beside a loop that plays one question after the other.

    python benchmarks/evaluate.py [-n 200] [--loop-questions N] [--max-tokens 64]
                                  [--model smollm2] [--device cpu|cuda]

The loop is the one that guides to OpenEnv and TRL show: a `text-generation` pipeline, the chat
template, one prompt at a time, and the answer by a regular expression. Both decode greedily, play
the same environment in this process (the guides' server would add its round trips to the loop), and
are timed from the name of the model to the metrics, with the loading of the model.
`--loop-questions` shortens the loop on a slow machine: its time per question hardly varies.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = "reasoning_gym:chain_sum"
DATASET_CONFIG = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
SYSTEM_PROMPT = """You add integers with care.

You are given a sum of several integers. Work it out, and submit a single number.

Rules:
1. Read all of the question first.
2. Call the tool `answer` once, with the number that you found.
3. The answer is one integer, without units and without an explanation.
"""
SEED = 999


def main() -> None:
    args = _parse_args()
    import torch

    print(f"{args.model}, {ENVIRONMENT}, at most {args.max_tokens} tokens per reply")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.device}\n")
    loop_questions = args.loop_questions or args.num_questions
    start = time.perf_counter()
    loop_results = asyncio.run(_run_loop(args, loop_questions))
    loop_s = (time.perf_counter() - start) / loop_questions
    print("| | questions | seconds | questions/s | ratio | accuracy | tokens per reply |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    _print_row("one by one", loop_questions, loop_s, 1.0, *loop_results)
    start = time.perf_counter()
    results = _run_ludus(args)
    ludus_s = (time.perf_counter() - start) / args.num_questions
    _print_row("ludus.evaluate", args.num_questions, ludus_s, loop_s / ludus_s, *results)


async def _run_loop(args: argparse.Namespace, questions: int) -> tuple[float, float]:
    """Play one question after the other; returns the accuracy and the tokens per reply."""
    from transformers import AutoTokenizer, pipeline

    from ludus import connect
    from ludus.policy.model_ref import resolve_model

    folder = str(resolve_model(args.model).path)
    # bfloat16, which "auto" gives, is emulated on most CPUs.
    dtype = "float32" if args.device == "cpu" else "auto"
    generate: Any = pipeline("text-generation", model=folder, device=args.device, dtype=dtype)
    generate.model.generation_config.max_length = None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rewards, tokens = [], 0
    async with connect(ENVIRONMENT).session() as session:
        for number in range(questions):
            first = await session.reset(seed=SEED + number, dataset_config=DATASET_CONFIG)
            messages = [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": first.observation["question"]},
            ]
            prompt = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            text = generate(prompt, max_new_tokens=args.max_tokens, do_sample=False)
            completion = text[0]["generated_text"][len(prompt) :]
            tokens += len(tokenizer(completion)["input_ids"])
            match = re.search(r'"answer"\s*:\s*"?(\d+)"?', completion)
            numbers = re.findall(r"\b(\d+)\b", completion)
            answer = match[1] if match else numbers[-1] if numbers else "0"
            result = await session.step({"answer": answer})
            rewards.append(float(result.reward or 0.0))
    return sum(rewards) / len(rewards), tokens / questions


def _run_ludus(args: argparse.Namespace) -> tuple[float, float]:
    """Evaluate the same model; returns the accuracy and the tokens per reply."""
    from ludus import EvalConfig, evaluate_sync
    from ludus.evaluation import parse_candidates
    from ludus.policy.agent_factory import AgentConfig

    config = EvalConfig(
        num_episodes=args.num_questions,
        task={"dataset_config": DATASET_CONFIG},
        system_prompt=SYSTEM_PROMPT,
        max_tokens=args.max_tokens,
    )
    candidates = parse_candidates([f"model={args.model}"], AgentConfig(device=args.device))
    with tempfile.TemporaryDirectory() as folder:
        evaluation = evaluate_sync(ENVIRONMENT, candidates, Path(folder) / "eval", config)
    estimates = evaluation.scores[0].metrics
    return estimates["accuracy"].value, estimates["reply_tokens"].value


def _print_row(
    name: str, questions: int, seconds: float, ratio: float, accuracy: float, tokens: float
) -> None:
    """Print a row of the table; `seconds` are those of a question."""
    print(
        f"| {name} | {questions:,} | {questions * seconds:.1f} | {1 / seconds:.2f} | {ratio:.1f} "
        f"| {100 * accuracy:.1f} % | {tokens:.0f} |",
        flush=True,
    )


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--num-questions", type=int, default=200)
    parser.add_argument("--loop-questions", type=int, help="fewer questions for the loop")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
