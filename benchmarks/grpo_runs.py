"""GRPO runs for the benchmarks: with stock TRL and with Ludus; environments and a tiny model.

Stock TRL is `trl.GRPOTrainer(environment_factory=...)` with the config, tasks, prompts and tools
that Ludus uses for the same config; its loop, its decoding and its loss are unchanged.
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
from typing import Any, ClassVar, Literal

from ludus import CollectConfig, ToolCall, ToolEnvironment, collect, episodes, grpo, sft, tool
from ludus.agents.scripted import RandomAgent
from ludus.rollout.progress import PhaseProgress
from ludus.train import GRPOConfig, TrainConfig

PICK, SLOW, TEMPTING = "grpo_runs:Pick", "grpo_runs:Slow", "grpo_runs:Tempting"
STEP_LATENCY_S = 0.05
TRL_ROWS = 64
"""Rows that TRL trains on at once: with more, its padded batches do not fit into memory."""
_SPECIAL_TOKENS = ("<pad>", "<bos>", "<|im_start|>", "<|im_end|>")
_TOKENIZER_CORPUS = (
    "You are a careful player. Pick a letter, and call the tool with it.",
    '{"name": "pick", "arguments": {"letter": "a"}} {"type": "function", "parameters": {}}',
    "user assistant system tool State the final answer to the following arithmetic problem:",
)


class Pick(ToolEnvironment):
    """Pick a letter; one of them gives a reward, and the prompt does not say which."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Pick a letter ({(seed or 0) % 7})."

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The one that you pick.
        """
        return self.finish(float(letter == "c"), "So be it.")


class Tempting(ToolEnvironment):
    """Pick a letter: the one that the oracle picks gives half of what another one gives."""

    REWARDS: ClassVar = {"a": 0.5, "c": 1.0}

    def reset(self, *, seed: int | None = None) -> str:
        return f"Pick a letter ({(seed or 0) % 7})."

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The one that you pick.
        """
        return self.finish(self.REWARDS.get(letter, 0.0), "So be it.")

    def oracle(self) -> ToolCall:
        return ToolCall(name="pick", arguments={"letter": "a"})


class Slow(ToolEnvironment):
    """Sums as in reasoning_gym's chain_sum, from an environment with slow steps."""

    blocking = True

    def reset(self, *, seed: int | None = None) -> str:
        time.sleep(STEP_LATENCY_S)
        rng = random.Random(seed)
        first, *rest = (rng.randint(10, 99) for _ in range(rng.randint(2, 3)))
        signed = [rng.choice((1, -1)) * number for number in rest]
        self.total = first + sum(signed)
        expression = f"{first}" + "".join(f" {'-' if n < 0 else '+'} {abs(n)}" for n in signed)
        return f"State the final answer to the following arithmetic problem: {expression} ="

    @tool
    def answer(self, answer: str) -> str:
        """Submit the final answer to the question.

        Args:
            answer: The final answer, in the form that the question asks for, and nothing else.
        """
        time.sleep(STEP_LATENCY_S)
        right = answer.strip() == str(self.total)
        return self.finish(float(right), f"The answer is {self.total}.")


class StepTimer:
    """A `TrainProgress` that records the time of each logged step, after a device sync."""

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
        seconds = f"{self.times[-1] - self.times[-2]:.2f} s, " if len(self.times) > 1 else ""
        reward = line.get("reward", float("nan"))
        print(f"{self.name}: step {len(self.times)}, {seconds}reward {reward:.3f}", flush=True)


def run_ludus(environment: str, model: str, config: GRPOConfig, timer: StepTimer) -> None:
    """Train with Ludus, into a temporary folder."""
    with TemporaryDirectory() as folder:
        try:
            grpo(environment, model, Path(folder) / "out", config, progress=timer)
        finally:
            _free_memory()


def run_trl(
    environment: str,
    model: str,
    config: GRPOConfig,
    timer: StepTimer,
    prepare: Callable[[Any, Any], None] = lambda trainer, env_class: None,
) -> None:
    """Train with stock TRL. `prepare` gets the trainer and the environment class first."""
    from ludus.train.context import training_process

    with TemporaryDirectory() as folder, training_process(Path(folder)):
        trainer, env_class = _build_trl_trainer(environment, model, config, Path(folder), timer)
        prepare(trainer, env_class)
        try:
            trainer.train()
        finally:
            trainer.environments, trainer._environment_pool = None, {}
            del trainer
            _free_memory()


def _build_trl_trainer(
    environment: str, model: str, config: GRPOConfig, folder: Path, timer: StepTimer
) -> tuple[Any, Any]:
    import trl
    from transformers import PrinterCallback, TrainerCallback

    from ludus.policy.load import load_model
    from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
    from ludus.train.trl_compat import tasks
    from ludus.train.trl_compat.environment_factory import (
        environment_factory,
        offer_environment_tools,
    )
    from ludus.train.trl_config import resolve_learning_rate

    def on_log(args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "train_runtime" not in logs:
            timer.step({"step": state.global_step, **logs})

    weights = load_model(model, device="cpu", dtype="float32")
    trl_config = build_trl_grpo_config(config, folder)
    trl_config.per_device_train_batch_size = min(TRL_ROWS, config.episodes)
    batches = config.episodes // trl_config.per_device_train_batch_size
    trl_config.gradient_accumulation_steps = trl_config.steps_per_generation = batches
    size = weights.num_parameters()
    trl_config.learning_rate = resolve_learning_rate(config, "grpo", size, groups=config.groups)
    env_class = environment_factory(environment, task=config.task)
    trainer = trl.GRPOTrainer(
        model=weights,
        args=trl_config,
        train_dataset=tasks(
            environment, config.steps * config.groups, seed=config.seed,
            system_prompt=config.system_prompt,
        ),
        processing_class=_load_tokenizer(model),
        environment_factory=env_class,
        callbacks=[type("LogCallback", (TrainerCallback,), {"on_log": staticmethod(on_log)})()],
    )  # fmt: skip
    # TRL derives its own tool schemas from methods; both must see the same prompt.
    offer_environment_tools(trainer)
    trainer.remove_callback(PrinterCallback)
    return trainer, env_class


def _load_tokenizer(model: str) -> Any:
    """The tokenizer with the chat template that Ludus uses."""
    from ludus.policy.chat.chat_format import find_chat_format
    from ludus.policy.load import load_tokenizer

    tokenizer = load_tokenizer(model)
    chat_format = find_chat_format(tokenizer)
    tokenizer.chat_template = chat_format.template
    tokenizer.response_template = dict(chat_format.response_template)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def train_tiny_model(
    folder: Path,
    environment: str = PICK,
    config: CollectConfig | None = None,
    epochs: float = 20.0,
) -> str:
    """Train a model of a few thousand weights to call tools, by default on random episodes."""
    config = config or CollectConfig(agent=RandomAgent(), num_episodes=120)
    asyncio.run(collect(environment, folder / "run", config))
    rows = [_sft_row(episode) for episode in episodes(folder / "run" / "episodes.jsonl")]
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _write_random_model(folder / "base")
    train_config = TrainConfig(
        epochs=epochs, batch_size=8, learning_rate=1e-2, precision="fp32", device="cpu"
    )
    sft(folder / "data", str(folder / "base"), folder / "model", train_config)
    return str(folder / "model")


def _sft_row(episode: Any) -> dict[str, Any]:
    """The messages up to the last reply."""
    messages = [
        json.loads(message.model_dump_json(exclude_none=True)) for message in episode.messages
    ]
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    return {"messages": messages[: last + 1], "tools": list(episode.tools)}


def _write_random_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(_TOKENIZER_CORPUS, trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(_SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<|im_end|>"}
    tokenizer_class: Any = PreTrainedTokenizerFast  # Its constructor is untyped.
    tokenizer = tokenizer_class(tokenizer_object=bpe, **names)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
