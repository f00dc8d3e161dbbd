"""GRPO on several environments at once: a dict of environments, with a reward for each.

The `environment` column of a row says where it is played. A reward function scores the episodes
of its environment, and returns None for all others.

    ludus serve wordle --port 8001
    ludus serve catch --port 8002
    python examples/grpo_multi_env.py --model Qwen/Qwen3-1.7B

Wordle and Catch are classes written by hand, on servers. Echo is played in this process by a class
that Ludus makes; it has `get_reward`, so TRL needs no function for it.
"""

from __future__ import annotations

import argparse

from datasets import Dataset

from ludus.envs.catch import CatchAction, CatchEnv
from ludus.envs.wordle import WordleAction, WordleEnv
from ludus.train import environment_factory
from ludus.train.trl_compat import GRPOConfig, GRPOTrainer

options = argparse.ArgumentParser(description="GRPO on Wordle, Catch and Echo.")
options.add_argument("--wordle-url", default="http://127.0.0.1:8001")
options.add_argument("--catch-url", default="http://127.0.0.1:8002")
options.add_argument("--model", default="Qwen/Qwen3-1.7B")
options.add_argument("--out", default="multi-env-grpo")
options.add_argument("--steps", type=int, default=150)
options.add_argument("--max-episode-tokens", type=int, default=1024)
options.add_argument("--report-to", default="none", help="trackio, wandb, ...")
options.add_argument("--cpu", action="store_true", help="train without a GPU")
given = options.parse_args()


# Environment classes: reset, tools as public methods, an instance for each rollout.
class ServedGame:
    """A game on a server. The public methods of a subclass are its tools."""

    def __init__(self):
        self.client = self.client_class(base_url=self.url).sync()

    def reset(self, seed, **row):
        self.reward, self.done = 0.0, False
        return self.client.reset(seed=seed).observation.text

    def _step(self, action):
        if self.done:
            raise ValueError("The game is over.")
        result = self.client.step(action)
        self.reward += result.reward or 0.0
        self.done = result.done
        return result.observation.text


class WordleGame(ServedGame):
    client_class, url = WordleEnv, given.wordle_url

    def guess(self, word: str) -> str:
        """Guess the secret word.

        Args:
            word: A word of five letters.
        """
        return self._step(WordleAction(word=word))


class CatchGame(ServedGame):
    client_class, url = CatchEnv, given.catch_url

    def move(self, direction: str) -> str:
        """Move the paddle by one column, while the ball falls by one row.

        Args:
            direction: left, stay or right.
        """
        return self._step(CatchAction(direction=direction))


# Reward functions: None for episodes of another environment.
def wordle_reward(environments, **kwargs):
    return [env.reward if isinstance(env, WordleGame) else None for env in environments]


def catch_reward(environments, **kwargs):
    return [env.reward if isinstance(env, CatchGame) else None for env in environments]


# Several environments: the rows say which one is played.
environments = {
    "wordle": WordleGame,
    "catch": CatchGame,
    "echo": environment_factory("echo"),
}
prompts = {
    "wordle": "Play Wordle with the tool `guess`. Use what each guess tells you.",
    "catch": "Play Catch with the tool `move`, one call for each row.",
    "echo": "Say something with the tool `echo_message`.",
}
# All attempts of a group play one row, so its seed gives them the same task.
names = [name for _ in range(1000) for name in environments]
dataset = Dataset.from_dict(
    {
        "prompt": [[{"role": "user", "content": f"{prompts[name]}\n\n"}] for name in names],
        "environment": names,
        "seed": list(range(len(names))),
    }
)
# Trainer.
trainer = GRPOTrainer(
    model=given.model,
    reward_funcs=[wordle_reward, catch_reward],
    train_dataset=dataset,
    environment_factory=environments,
    args=GRPOConfig(
        max_steps=given.steps,
        learning_rate=1e-6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=6,
        num_generations=4,
        max_completion_length=given.max_episode_tokens,
        chat_template_kwargs={"enable_thinking": False},
        logging_steps=1,
        output_dir=given.out,
        report_to=given.report_to,
        save_strategy="no",
        use_cpu=given.cpu,
    ),
)
trainer.train()
# Log: None, not NaN, where a step had no episode of an environment.
for log in trainer.state.log_history:
    if "reward" in log:
        means = {name: log[f"rewards/{name}/mean"] for name in trainer.reward_func_names}
        print(f"step {log['step']}: {means}")
