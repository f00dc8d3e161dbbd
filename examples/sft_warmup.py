"""A warm start for GRPO: a teacher plays, and a student is trained on what it solved.

The environment's own solution teaches, or a model:

    python examples/sft_warmup.py
    python examples/sft_warmup.py --teacher openai:gpt-5-mini --model Qwen/Qwen3-1.7B

The same command resumes where it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
from pathlib import Path

import ludus

# 3. System prompt: the same for the teacher, the student and the evaluation.
SYSTEM_PROMPT = """You add up numbers with care.
Work out the sum that you are given, and call the tool `answer` once, with the number alone.
"""

# 4. Difficulty: arguments of the environment's reset.
DATASET_CONFIG = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}
ENVIRONMENT = "reasoning_gym:chain_sum"


def read_options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description="SFT on solved sums.")
    options.add_argument("--teacher", default="oracle", help="oracle, or openai:MODEL")
    options.add_argument("--url", help="a server of the environment; in this process by default")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--episodes", type=int, default=300)
    options.add_argument("--epochs", type=float, default=3)
    options.add_argument("--eval-episodes", type=int, default=50)
    options.add_argument("--max-tokens", type=int, default=64)
    options.add_argument("--out", type=Path, default=Path("sft-warmup"))
    return options.parse_args()


async def main(given: argparse.Namespace) -> None:
    played = {
        "system_prompt": SYSTEM_PROMPT,
        "task": {"dataset_config": DATASET_CONFIG},
        "base_url": given.url,
    }

    # 5. Collect rollouts.
    teacher = None if given.teacher == "oracle" else ludus.agent(given.teacher)
    config = ludus.CollectConfig(num_episodes=given.episodes, agent=teacher, **played)
    with ludus.progress() as progress:
        run = await ludus.collect(ENVIRONMENT, given.out / "rollouts", config, progress=progress)

    # 6. Filter: solved episodes become rows.
    curation = ludus.CurateConfig(min_reward=1.0)
    report = ludus.curate(run.folder, given.out / "data", curation)
    print(f"{report.rows['train']} rows; left out: {report.left_out}")

    # 7. Inspect some of them; `ludus lint` shows the tokens that are trained on.
    for episode in list(ludus.episodes(run.folder))[:3]:
        call = episode.messages[2].tool_calls[0].function
        print(f"{episode.messages[1].text!r} -> {call.name}({call.arguments})")

    # 9. Fine-tune, with loss on the assistant's tokens only.
    training = ludus.TrainConfig(epochs=given.epochs, batch_size=4, report_to="none")
    with ludus.training_progress() as shown:
        model = ludus.sft(
            given.out / "data", given.model, given.out / "model", training, progress=shown
        )

    # 10. Evaluate before and after, on held-out sums.
    config = ludus.EvalConfig(
        num_episodes=given.eval_episodes, max_tokens=given.max_tokens, **played
    )
    candidates = [f"base={given.model}", f"sft={model.folder}"]
    with ludus.progress() as progress:
        out = given.out / "eval"
        result = await ludus.evaluate(ENVIRONMENT, candidates, out, config, progress=progress)
    for score in result.scores:
        print(score.label, {name: estimate.value for name, estimate in score.metrics.items()})

    # 11. Where to go next: GRPO from the trained model, with the same prompt and difficulty.
    task = [
        "--system-prompt",
        SYSTEM_PROMPT,
        "--task",
        f"dataset_config={json.dumps(DATASET_CONFIG)}",
    ]
    grpo = ["train", "grpo", ENVIRONMENT, *task, "--model", str(model.folder)]
    print(shlex.join(["ludus", *grpo, "-o", str(given.out / "grpo")]))
    print(f"ludus push model {model.folder} USER/NAME --private")


if __name__ == "__main__":
    asyncio.run(main(read_options()))
