"""The trainer for older TRL scripts: legacy rollout functions, and the stand-in for vLLM."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from datasets import Dataset

from ludus.client.event_loop import run_sync
from ludus.errors import ConfigError
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.load import Policy
from ludus.train.trl_compat import GRPOConfig, GRPOTrainer
from ludus.train.trl_compat.rollout_func import expand_per_completion, is_legacy
from ludus.train.trl_compat.vllm_shim import PolicyServer, VllmShim
from train.trl_compat.scripted_rollouts import FAST_ARGS, chat_policy

VLLM = {"use_vllm": True, "vllm_mode": "server"}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return chat_policy()


@pytest.fixture
def server(policy: Policy) -> Iterator[PolicyServer]:
    generator = RequestBatcher(HFDecoder(policy.model, pad_id=policy.tokenizer.pad_token_id))
    with PolicyServer(0) as served:
        stops = list(policy.chat_format.stop_token_ids)
        served.completions = VllmShim(generator, policy.tokenizer, stop_token_ids=stops, seed="1")
        yield served
    run_sync(generator.close())


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def build_trainer(folder: Path, policy: Policy, prompt: Any, function: Any, **more: Any) -> Any:
    settings = {**FAST_ARGS, "per_device_train_batch_size": 4, "max_completion_length": 6, **more}
    return GRPOTrainer(
        policy.model,
        lambda completions, bonus=None, **_: bonus or [float(len(c)) for c in completions],
        GRPOConfig(str(folder), max_steps=1, **settings),
        Dataset.from_dict({"prompt": [prompt] * 4}),
        processing_class=policy.tokenizer,
        rollout_func=function,
    )


def ask(server: PolicyServer, **payload: Any) -> requests.Response:
    return requests.post(f"{server.url}/generate/", json=payload, timeout=30)


def test_legacy_functions_need_three_arguments() -> None:
    assert is_legacy(lambda prompts, args, processing_class: {})
    assert is_legacy(lambda prompts, args, processing_class, extra=1: {})
    assert not is_legacy(lambda prompts, trainer: {})
    assert not is_legacy(lambda prompts, trainer, extra=1: {})
    assert not is_legacy(lambda *given: {})


def test_values_per_prompt_are_repeated_per_completion() -> None:
    given = {"prompt_ids": [[1], [2]], "completion_ids": [[3], [4], [5], [6]], "logprobs": None}
    expanded = expand_per_completion({**given, "env_reward": [1, 2, 3, 4], "level": "easy"}, 4, 2)
    assert expanded["prompt_ids"] == [[1], [1], [2], [2]]
    assert (expanded["completion_ids"], expanded["env_reward"]) == (
        [[3], [4], [5], [6]],
        [1, 2, 3, 4],
    )
    whole = {**given, "prompt_ids": [[1], [1], [2], [2]]}
    assert expand_per_completion(whole, 4, 2)["prompt_ids"] == whole["prompt_ids"]


def test_logprobs_may_be_nested() -> None:
    given = {"prompt_ids": [[1]], "completion_ids": [[3, 4], [5, 6]]}
    flat = [[-1.0, -2.0], [-3.0, -4.0]]
    nested = [[[-1.0, -9.0], [-2.0]], [[-3.0], [-4.0]]]
    assert expand_per_completion({**given, "logprobs": nested}, 2, 2)["logprobs"] == flat
    assert expand_per_completion({**given, "logprobs": flat}, 2, 2)["logprobs"] == flat


def test_incomplete_output_is_rejected() -> None:
    few = {"prompt_ids": [[1], [2]], "completion_ids": [[3], [4]], "logprobs": None}
    with pytest.raises(ConfigError, match="2 completions for 2 prompts"):
        expand_per_completion(few, 8, 4)
    with pytest.raises(ConfigError, match="'logprobs'"):
        expand_per_completion({"prompt_ids": [], "completion_ids": []}, 0, 2)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("prompt", ["Say:", [{"role": "user", "content": "Say:"}]])
def test_legacy_function_gets_each_prompt_once_as_text(
    tmp_path: Path, policy: Policy, prompt: Any, once: bool
) -> None:
    seen: list[Any] = []

    def function(prompts: list[str], args: Any, processing_class: Any) -> dict[str, Any]:
        seen.append((prompts, args.num_generations, processing_class))
        ids = processing_class(text=prompts)["input_ids"]
        count = len(prompts) * args.num_generations
        completions = [[5, 6, policy.tokenizer.eos_token_id] for _ in range(count)]
        repeated = ids if once else [each for each in ids for _ in range(args.num_generations)]
        return {
            "prompt_ids": repeated, "completion_ids": completions,
            "logprobs": [[-1.0] * 3] * count, "bonus": [float(at % 2) for at in range(count)],
        }  # fmt: skip

    trainer = build_trainer(tmp_path, policy, prompt, function)
    trainer.train()
    text = "Say:" if isinstance(prompt, str) else "<|im_start|>user\nSay:<|im_end|>\n"
    ((prompts, members, tokenizer),) = seen
    assert (len(prompts), members, tokenizer) == (2, 2, trainer.processing_class)
    assert all(each.startswith(text) for each in prompts)
    assert trainer.state.log_history[-1]["reward"] == pytest.approx(0.5)


def test_current_rollout_func_is_passed_through(tmp_path: Path, policy: Policy) -> None:
    def function(prompts: list[str], trainer: Any) -> dict[str, Any]:
        raise AssertionError("not called here")

    trainer = build_trainer(tmp_path, policy, "Say:", function)
    assert trainer.rollout_func is function


def test_policy_is_served_only_during_rollouts(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    port, asked = free_port(), []
    url = f"http://0.0.0.0:{port}"

    def function(prompts: list[str], trainer: Any) -> dict[str, Any]:
        asked.append(requests.get(f"{url}/health/", timeout=5).status_code)
        assert not trainer.model.training
        payload: Any = {"prompts": prompts, "n": 1, "max_tokens": 4}
        output: dict[str, Any] = requests.post(f"{url}/generate/", json=payload, timeout=30).json()
        return output

    def reward(completions: Any, **_: Any) -> list[float]:
        payload = {"prompts": ["x"]}
        asked.append(requests.post(f"{url}/generate/", json=payload, timeout=5).status_code)
        return [float(at) for at in range(len(completions))]

    trainer = build_trainer(tmp_path, policy, "Say:", function, vllm_server_port=port, **VLLM)
    trainer.reward_funcs = [reward]
    trainer.train()
    assert asked == [200, 503]
    assert f"port {port}" in capsys.readouterr().err
    assert trainer.model.training
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/health/", timeout=5)


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_transformers_generates_without_vllm_and_rollout_func(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    trainer = build_trainer(tmp_path, policy, "Say:", None, use_vllm=True, vllm_mode=mode)
    assert "transformers' generate" in capsys.readouterr().err
    assert (trainer.use_vllm, trainer.rollout_func) == (False, None)


def test_completions_have_ids_and_logprobs_and_vary(server: PolicyServer, policy: Policy) -> None:
    wish = {"prompts": ["One", "Two"], "n": 3, "max_tokens": 5, "top_k": -1}
    output, again = ask(server, **wish).json(), ask(server, **wish).json()
    assert output["prompt_ids"] == policy.tokenizer(["One", "Two"])["input_ids"]
    lengths = [len(ids) for ids in output["completion_ids"]]
    assert len(lengths) == 6 and all(1 <= length <= 5 for length in lengths)
    assert [len(row) for row in output["logprobs"]] == lengths
    assert all(value <= 0 for row in output["logprobs"] for value in row)
    assert output["completion_ids"] != again["completion_ids"]
    by_ids = ask(server, prompts=output["prompt_ids"], max_tokens=2, temperature=0).json()
    assert by_ids["prompt_ids"] == output["prompt_ids"]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({}, "`prompts`"),
        ({"prompts": []}, "`prompts`"),
        ({"prompts": ["a"], "n": 0}, "`n`"),
        ({"prompts": ["a"], "repetition_penalty": 1.5}, "`repetition_penalty`"),
        ({"prompts": ["a"], "temperature": -1}, "temperature"),
    ],
)
def test_unsupported_request_is_a_400(
    server: PolicyServer, payload: dict[str, Any], words: str
) -> None:
    reply = ask(server, **payload)
    assert reply.status_code == 400 and words in reply.json()["error"]
    assert requests.get(f"{server.url}/other/", timeout=5).status_code == 404


def test_port_in_use_is_an_error(server: PolicyServer) -> None:
    with pytest.raises(ConfigError, match="vllm_server_port"):
        PolicyServer(int(server.url.rpartition(":")[2]))
