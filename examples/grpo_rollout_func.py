"""GRPO on the echo environment, with a rollout function of one's own.

A script for TRL's `rollout_func` in its older form, of three arguments, which asks a server for
completions. TRL's own server no longer has that route: Ludus's trainer serves the policy that it
trains at the same address, and hands the function's results on to TRL.

    ludus serve echo --port 8001
    python examples/grpo_rollout_func.py --model Qwen/Qwen2.5-0.5B-Instruct
"""

from __future__ import annotations

import argparse

import requests
from datasets import Dataset

from ludus.envs.echo import EchoAction, EchoEnv
from ludus.train.trl_compat import GRPOConfig, GRPOTrainer

options = argparse.ArgumentParser(description="GRPO with a rollout function.")
options.add_argument("--url", default="http://127.0.0.1:8001", help="where the echo is")
options.add_argument("--port", type=int, default=8000, help="where the policy is asked")
options.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
options.add_argument("--out", default="echo-grpo")
options.add_argument("--tasks", type=int, default=64)
options.add_argument("--max-tokens", type=int, default=2048)
options.add_argument("--log-every", type=int, default=10)
options.add_argument("--cpu", action="store_true", help="train without a GPU")
given = options.parse_args()

# Environment client.
client = EchoEnv(base_url=given.url).sync()


# Rollout function: completions, rewards of the environment, extra fields.
def rollout_func(prompts, args, processing_class):
    # Completions: `num_generations` for each prompt.
    payload = {
        "prompts": prompts,
        "n": args.num_generations,
        "temperature": args.temperature,
        "max_tokens": args.max_completion_length,
    }
    response = requests.post(f"http://0.0.0.0:{given.port}/generate/", json=payload)
    result = response.json()

    completions_text = processing_class.batch_decode(
        result["completion_ids"], skip_special_tokens=True
    )

    # What the environment gives for each of them.
    client.reset()
    env_rewards = []
    for msg in completions_text:
        env_result = client.step(EchoAction(message=msg))
        env_rewards.append(env_result.reward)

    # Whatever else is in the result reaches the reward functions.
    result["env_reward"] = env_rewards
    return result


# Reward function: reads the extra field.
def reward_from_env(completions, **kwargs):
    env_rewards = kwargs.get("env_reward", [])
    return [float(reward) for reward in env_rewards] if env_rewards else [0.0] * len(completions)


# Dataset.
dataset = Dataset.from_dict({"prompt": ["Say something for the *Echo* to repeat:"] * given.tasks})

# Trainer.
trainer = GRPOTrainer(
    model=given.model,
    reward_funcs=reward_from_env,
    train_dataset=dataset,
    rollout_func=rollout_func,
    args=GRPOConfig(
        vllm_mode="server",
        use_vllm=True,
        vllm_server_port=given.port,
        num_train_epochs=1,
        num_generations=8,
        max_completion_length=given.max_tokens,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        logging_steps=given.log_every,
        output_dir=given.out,
        report_to="none",
        use_cpu=given.cpu,
    ),
)
trainer.train()
