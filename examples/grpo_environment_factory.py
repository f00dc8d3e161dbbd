"""GRPO on sums of two or three numbers, with an environment class of one's own.

A script for TRL's `environment_factory`, as tutorials of OpenEnv have it: the class, the reward
function and the settings are TRL's affair, and Ludus is where the questions come from.

    ludus serve reasoning_gym --port 8000
    python examples/grpo_environment_factory.py --model Qwen/Qwen3-1.7B

Each instance draws its own questions here, so the members of a group are asked different things.
`ludus.train.environment_factory` makes a class like this for any environment, and
`ludus.train.trl_compat.tasks` gives a group one task.
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any, ClassVar

from datasets import Dataset

from ludus.envs.reasoning_gym import ReasoningGymAction, ReasoningGymEnv
from ludus.train.trl_compat import GRPOConfig, GRPOTrainer

options = argparse.ArgumentParser(description="GRPO on small sums.")
options.add_argument("--url", default="http://127.0.0.1:8000", help="where the questions come from")
options.add_argument("--model", default="Qwen/Qwen3-1.7B")
options.add_argument("--out", default="reasoning-gym-chain-sum")
options.add_argument("--steps", type=int, default=150)
options.add_argument("--log-every", type=int, default=10)
options.add_argument("--max-episode-tokens", type=int, default=256)
options.add_argument("--report-to", default="none", help="trackio, wandb, ...")
options.add_argument("--cpu", action="store_true", help="train without a GPU")
options.add_argument("--push", action="store_true", help="send the model to the Hub")
given = options.parse_args()

# 3. System prompt.
prompt = """You add up numbers with care.
You get a chain of additions. Work it out and hand in one number.
Call the tool `answer` exactly once, with the number and nothing else.
"""


# 4. Environment class: TRL makes an instance for each rollout, and offers its methods as tools.
class ReasoningGymTrainEnv:
    """One question, one answer, and the score that it got."""

    DATASET_NAME = "chain_sum"
    DATASET_SIZE = 1000
    DATASET_CONFIG: ClassVar = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}

    def __init__(self):
        self.client = ReasoningGymEnv(base_url=given.url).sync()
        self._dataset_seed = random.randint(0, 2**31 - 1)
        self._initialized = False
        self.reward = 0.0
        self.done = False

    def reset(self, **kwargs) -> str:
        if not self._initialized:
            result = self.client.reset(
                dataset_name=self.DATASET_NAME,
                dataset_config=self.DATASET_CONFIG,
                seed=self._dataset_seed,
                size=self.DATASET_SIZE,
            )
            self._initialized = True
        else:
            # Without arguments the server asks the next question of the same data set.
            result = self.client.reset()
        self.reward = 0.0
        self.done = False
        return result.observation.question

    def answer(self, answer: str) -> str:
        """Hand in the final answer to the question.

        Args:
            answer: The number, and nothing else.

        Returns:
            The score, and what would have been right.
        """
        if self.done:
            raise ValueError("The question has been answered.")
        # Models write a number where the schema says text.
        result = self.client.step(ReasoningGymAction(answer=str(answer)))
        self.reward = float(result.observation.score or 0.0)
        self.done = True
        return f"score={self.reward} correct={result.observation.correct_answer}"


# 5. Reward function.
def reward_func(environments, **kwargs) -> list[float]:
    return [env.reward for env in environments]


# 10. Reward change over the run.
def told(log_history: list[dict[str, Any]], first: int = 5) -> str:
    """What the run has gained, from the rewards that were logged."""
    rewards = [log["reward"] for log in log_history if "reward" in log]
    if len(rewards) < 2 * first:
        return f"{len(rewards)} rewards were logged; with {2 * first} or more they are compared."
    before, after = statistics.mean(rewards[:first]), statistics.mean(rewards[-first:])
    return f"Reward from {before:.1%} to {after:.1%}: {(after - before) * 100:+.1f} points"


# 6. Dataset: one row for each episode; the question comes from the environment.
dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": prompt}] for _ in range(1000)]}
)
# 7. Settings.
grpo_config = GRPOConfig(
    num_train_epochs=1,
    max_steps=given.steps,
    learning_rate=1e-6,
    gradient_accumulation_steps=4,
    per_device_train_batch_size=1,
    warmup_steps=10,
    optim="adamw_torch",
    max_grad_norm=1.0,
    num_generations=2,
    max_completion_length=given.max_episode_tokens,
    log_completions=True,
    num_completions_to_print=2,
    chat_template_kwargs={"enable_thinking": False},
    output_dir=given.out,
    report_to=given.report_to,
    trackio_space_id=given.out if given.report_to == "trackio" else None,
    logging_steps=given.log_every,
    gradient_checkpointing=True,
    save_strategy="no",
    push_to_hub=given.push,
    use_cpu=given.cpu,
)
# 8. Trainer.
trainer = GRPOTrainer(
    model=given.model,
    reward_funcs=reward_func,
    train_dataset=dataset,
    args=grpo_config,
    environment_factory=ReasoningGymTrainEnv,
)
trainer.train()
# 9. Publish.
if given.push:
    trainer.push_to_hub(commit_message="GRPO on chain_sum")
print(told(trainer.state.log_history))
