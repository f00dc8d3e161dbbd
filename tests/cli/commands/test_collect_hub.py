"""The tutorial's own command, from the first episode to the data set on the Hub."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from chat_stub import chat_stub
from datasets import load_dataset
from publish.fake_hub import TOKEN, FakeHub, fake_hub
from test_readme import blocks
from world import serving

from cli.collect_cli import KEY, collect, error_line, read_episodes

DATASET_CONFIG = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}
SYSTEM_PROMPT = """You are a careful arithmetic assistant.

You will be given a chain of integer additions. Compute the result and submit it as a single number.

Rules:
1. Read the question carefully.
2. Use the tool `answer` exactly once with your final number.
3. The answer must be a single integer with no units or explanation.
"""
COMMAND = """reasoning_gym:chain_sum \
  --base-url {base_url} \
  --provider openai \
  --model gpt-5-mini \
  --num-episodes {n_episodes} \
  --max-tokens 1024 \
  --dataset-config {dataset_config_arg} \
  --system-prompt {system_prompt_arg} \
  --push-to-hub {hub_repo_arg} \
  --output-dir ./rollouts
"""


def to_qwen3_messages(record: Any) -> dict[str, Any]:
    """The tutorial's code, as it stands there."""
    converted = []
    for msg in record["messages"]:
        if msg["role"] == "tool":
            continue  # strip environment responses; SFT only needs the assistant turn
        if msg["role"] == "assistant" and msg.get("tool_calls"):
            tc = msg["tool_calls"][0]
            args = json.loads(tc["function"]["arguments"])
            answer_str = args.get("answer", "")
            tool_call_text = (
                "<tool_call>\n"
                + json.dumps({"name": "answer", "arguments": {"answer": answer_str}})
                + "\n</tool_call>"
            )
            converted.append({"role": "assistant", "content": tool_call_text})
        else:
            converted.append(msg)
    return {"messages": converted, "reward": record["reward"]}


def logged_in(hub: FakeHub, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "home")}


def test_the_tutorial_command_creates_the_data_set_that_its_code_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    with chat_stub(key=KEY) as stub, fake_hub() as hub, serving("reasoning_gym") as served:
        command = COMMAND.format(
            base_url=served.url,
            n_episodes=12,
            dataset_config_arg=shlex.quote(json.dumps(DATASET_CONFIG)),
            system_prompt_arg=shlex.quote(SYSTEM_PROMPT),
            hub_repo_arg=shlex.quote("ada/chain-sum-rollouts"),
        )
        done = collect(
            *(*shlex.split(command), "--llm-endpoint", stub.url),
            cwd=tmp_path,
            env={**logged_in(hub, tmp_path), "OPENAI_API_KEY": KEY},
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{hub.url}/datasets/ada/chain-sum-rollouts" in done.stdout.split()
    assert {body["max_tokens"] for body in stub.bodies} == {1024}
    assert {body["model"] for body in stub.bodies} == {"gpt-5-mini"}
    assert {"README.md", "episodes.jsonl", "results.jsonl"} <= hub.files.keys()
    assert hub.files["episodes.jsonl"] == (tmp_path / "rollouts/episodes.jsonl").read_bytes()

    folder = (tmp_path / "rollouts").rglob("*")
    written = [*hub.files.values(), *(file.read_bytes() for file in folder if file.is_file())]
    for secret in (KEY, TOKEN):
        assert secret not in done.stdout + done.stderr
        assert not any(secret.encode() in data for data in written)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    pulled = hub.write_to(tmp_path / "pulled")
    ds = load_dataset(str(pulled), split="train", cache_dir=str(tmp_path / "cache"))
    raw_rollouts = list(ds)
    rollouts = [to_qwen3_messages(r) for r in raw_rollouts]
    correct = [r for r in rollouts if r["reward"] == 1.0]
    assert len(raw_rollouts) == 12 and 0 < len(correct) < 12
    for row in correct:  # As section 7 of the tutorial looks at them.
        question = row["messages"][0]["content"]
        response = row["messages"][1]["content"]
        total = sum(int(term) for term in terms(question))
        answer = json.dumps({"name": "answer", "arguments": {"answer": str(total)}})
        assert response == f"<tool_call>\n{answer}\n</tool_call>"

    guide = next(
        block for block in blocks("docs/coming-from-openenv.md") if "raw_rollouts" in block
    )
    found: dict[str, Any] = {}
    exec(guide.replace("user/chain-sum-rollouts", str(pulled)), found)
    assert found["correct"] == correct and "=" in found["question"]

    whole = load_dataset(str(pulled), "episodes", split="train", cache_dir=str(tmp_path / "cache"))
    system, asked, *_ = whole[0]["messages"]
    assert (system["role"], system["content"]) == ("system", SYSTEM_PROMPT)
    assert asked == raw_rollouts[0]["messages"][0] and whole[0]["tools"]


def terms(question: str) -> list[str]:
    """The numbers of "…: 12 - 34 + 56 =", with their signs."""
    problem = question.rpartition(":")[2].partition("=")[0]
    return problem.replace("- ", "-").replace("+ ", "+").split()


def test_a_failed_upload_keeps_all_episodes(tmp_path: Path) -> None:
    command = ("catch", "-n", "3", "--push-to-hub", "ada/catches", "-o", "run")
    journal = tmp_path / "run/episodes.jsonl"
    kept: bytes | None = None
    for status in (500, 403):
        with fake_hub(fail={"commit": status}) as hub:
            done = collect(*command, cwd=tmp_path, env=logged_in(hub, tmp_path))
        output = error_line(done)
        assert f"HTTP {status}" in output and "run" in output
        assert TOKEN not in output and hub.files == {}
        kept = kept or journal.read_bytes()
        assert len(read_episodes(tmp_path / "run")) == 3 and journal.read_bytes() == kept
    with fake_hub() as hub:
        done = collect(*command, cwd=tmp_path, env=logged_in(hub, tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "none new" in done.stdout and journal.read_bytes() == kept
    assert hub.files["episodes.jsonl"] == kept


def test_a_hub_refusal_is_reported_before_the_first_episode(tmp_path: Path) -> None:
    with fake_hub(fail={"create": 403}) as hub:
        command = ("catch", "--push-to-hub", "ada/catches", "-o", "run")
        done = collect(*command, cwd=tmp_path, env=logged_in(hub, tmp_path))
    assert "ada/catches" in error_line(done)
    assert not (tmp_path / "run").exists()


def test_a_password_in_a_url_is_not_published(tmp_path: Path) -> None:
    with fake_hub() as hub, serving("catch") as served:
        address = served.url.replace("://", "://ada:open-sesame@")
        command = ("catch", "-n", "1", "--base-url", address, "--push-to-hub", "ada/catches")
        collect(*command, "-o", "run", cwd=tmp_path, env=logged_in(hub, tmp_path))
    assert not [name for name, data in hub.files.items() if b"open-sesame" in data]
