"""What the benchmarks of GRPO share: environments, a tiny model, and both ways of training.

Stock TRL is `trl.GRPOTrainer(environment_factory=...)` with the config, the tasks, the prompts and
the tools that Ludus has for the same settings; nothing of its loop, its decoding or its loss is
touched. Which settings, and what is made of the figures, is each benchmark's own business.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from ludus import CollectConfig, ToolEnvironment, collect, episodes, grpo, sft, tool
from ludus.agents.random_agent import RandomAgent
from ludus.rollout.progress import PhaseProgress
from ludus.train import GRPOConfig, TrainConfig

PICK, SLOW = "grpo_world:Pick", "grpo_world:Slow"
LATENCY = 0.05
_MARKS = ("<pad>", "<bos>", "<|im_start|>", "<|im_end|>")
_WORDS = (
    "You are a careful player. Pick a letter, and call the tool with it.",
    '{"name": "pick", "arguments": {"letter": "a"}} {"type": "function", "parameters": {}}',
    "user assistant system tool State the final answer to the following arithmetic problem:",
)


class Pick(ToolEnvironment):
    """Pick a letter; one of them is worth something, and nobody says which."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Pick a letter ({(seed or 0) % 7})."

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The one that you pick.
        """
        return self.finish(float(letter == "c"), "So be it.")


class Slow(ToolEnvironment):
    """Sums as reasoning_gym's chain_sum asks them, behind a world that takes its time."""

    blocking = True

    def reset(self, *, seed: int | None = None) -> str:
        time.sleep(LATENCY)
        chance = random.Random(seed)
        first, *rest = (chance.randint(10, 99) for _ in range(chance.randint(2, 3)))
        signed = [chance.choice((1, -1)) * number for number in rest]
        self.total = first + sum(signed)
        asked = f"{first}" + "".join(f" {'-' if n < 0 else '+'} {abs(n)}" for n in signed)
        return f"State the final answer to the following arithmetic problem: {asked} ="

    @tool
    def answer(self, answer: str) -> str:
        """Submit the final answer to the question.

        Args:
            answer: The final answer, in the form that the question asks for, and nothing else.
        """
        time.sleep(LATENCY)
        right = answer.strip() == str(self.total)
        return self.finish(float(right), f"The answer is {self.total}.")


class Clock:
    """A watch that reads the time whenever a step has been logged, with nothing left to compute."""

    stopping: str | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[float] = []
        self.lines: list[dict[str, Any]] = []

    def phase(self, progress: PhaseProgress) -> None: ...

    def begin(self, total_steps: int, resumed_from: int | None) -> None: ...

    def say(self, words: str) -> None:
        print(f"{self.name}: {words}", flush=True)

    def step(self, line: Mapping[str, Any]) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        self.lines.append(dict(line))
        took = f"{self.times[-1] - self.times[-2]:.2f} s, " if len(self.times) > 1 else ""
        reward = line.get("reward", float("nan"))
        print(f"{self.name}: step {len(self.times)}, {took}reward {reward:.3f}", flush=True)


def ludus(environment: str, model: str, settings: GRPOConfig, clock: Clock) -> None:
    """Ludus's own way, into a folder that is thrown away."""
    with TemporaryDirectory() as folder:
        try:
            grpo(environment, model, Path(folder) / "out", settings, progress=clock)
        finally:
            _tidy()


def stock(
    environment: str,
    model: str,
    settings: GRPOConfig,
    clock: Clock,
    prepare: Callable[[Any, Any], None] = lambda trainer, kind: None,
) -> None:
    """TRL's way. `prepare` is shown the trainer and the environment's class before it begins."""
    from ludus.train.process_env import training_process

    with TemporaryDirectory() as folder, training_process(Path(folder)):
        trainer, kind = _stock_trainer(environment, model, settings, Path(folder), clock)
        prepare(trainer, kind)
        try:
            trainer.train()
        finally:
            trainer.environments, trainer._environment_pool = None, {}
            del trainer
            _tidy()


def _stock_trainer(
    environment: str, model: str, settings: GRPOConfig, folder: Path, clock: Clock
) -> tuple[Any, Any]:
    import trl
    from transformers import PrinterCallback, TrainerCallback

    from ludus.policy.load import load_model
    from ludus.train.config import resolve_learning_rate
    from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
    from ludus.train.trl_compat.environment_factory import (
        environment_factory,
        use_exact_tool_schemas,
    )
    from ludus.train.trl_compat.task_rows import tasks

    def on_log(args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "train_runtime" not in logs:
            clock.step({"step": state.global_step, **logs})

    weights = load_model(model, device="cpu", dtype="float32")
    config = build_trl_grpo_config(settings, folder)
    size = weights.num_parameters()
    config.learning_rate = resolve_learning_rate(settings, "grpo", size, groups=settings.groups)
    kind = environment_factory(environment, task=settings.task)
    trainer = trl.GRPOTrainer(
        model=weights,
        args=config,
        train_dataset=tasks(
            environment, settings.steps * settings.groups, seed=settings.seed,
            system_prompt=settings.system_prompt,
        ),
        processing_class=_tokenizer(model),
        environment_factory=kind,
        callbacks=[type("Told", (TrainerCallback,), {"on_log": staticmethod(on_log)})()],
    )  # fmt: skip
    # TRL reads tools off methods in words of its own; both are to be shown the same prompt.
    use_exact_tool_schemas(trainer)
    trainer.remove_callback(PrinterCallback)
    return trainer, kind


def _tokenizer(model: str) -> Any:
    """Under the template that Ludus plays with."""
    from ludus.policy.chat.chat_format import find_chat_format
    from ludus.policy.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    dialect = find_chat_format(tokenizer)
    tokenizer.chat_template = dialect.template
    tokenizer.response_template = dict(dialect.response_template)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _tidy() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def tiny_model(folder: Path, environment: str = PICK) -> str:
    """A few thousand weights that have learned from chance how calls are written."""
    config = CollectConfig(agent=RandomAgent(), num_episodes=120)
    asyncio.run(collect(environment, folder / "run", config))
    rows = [_row(episode) for episode in episodes(folder / "run" / "episodes.jsonl")]
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _untaught(folder / "base")
    settings = TrainConfig(
        epochs=20.0, batch_size=8, learning_rate=1e-2, precision="fp32", device="cpu"
    )
    sft(folder / "data", str(folder / "base"), folder / "model", settings)
    return str(folder / "model")


def _row(episode: Any) -> dict[str, Any]:
    """All until the model's last words."""
    said = [json.loads(message.model_dump_json(exclude_none=True)) for message in episode.messages]
    last = max(at for at, message in enumerate(said) if message["role"] == "assistant")
    return {"messages": said[: last + 1], "tools": list(episode.tools)}


def _untaught(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(_WORDS, trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(_MARKS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<|im_end|>"}
    make: Any = PreTrainedTokenizerFast  # Not typed by its makers.
    tokenizer = make(tokenizer_object=made, **names)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
