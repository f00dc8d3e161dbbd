"""A stand-in for TRL's vLLM server that samples from the policy under training.

For scripts written for TRL's vLLM server: POST /generate/ takes prompts and sampling parameters and
returns token ids and log-probabilities; GET /health/ is the health check. It listens on loopback
only.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ludus.client.event_loop import run_sync
from ludus.data.files import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, LudusError
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CompletionRequest(BaseModel):
    """The body of POST /generate/."""

    model_config = ConfigDict(extra="forbid")

    prompts: list[str | list[int]] = Field(min_length=1)
    n: int = Field(1, ge=1)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = Field(16, ge=1)


class VllmShim:
    """Samples completions from the policy's current weights."""

    def __init__(
        self,
        generator: RequestBatcher,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_token_ids: Sequence[int],
        seed: str,
    ) -> None:
        self._generator, self._tokenizer, self._seed = generator, tokenizer, seed
        self._stop_token_ids = frozenset(stop_token_ids)
        self._request_count = 0

    async def generate(self, body: bytes) -> JsonObject:
        """Return the ids of each prompt, once, and of its `n` completions, as vLLM does."""
        request = CompletionRequest.model_validate_json(body)
        top_k = request.top_k if request.top_k > 0 else None
        sampling = SamplingParams(request.temperature, request.top_p, top_k)
        self._request_count += 1
        prompts = [
            list(self._tokenizer(text=prompt)["input_ids"]) if isinstance(prompt, str) else prompt
            for prompt in request.prompts
        ]
        completions = await asyncio.gather(
            *(
                self._generator.sample(
                    ids,
                    max_tokens=request.max_tokens,
                    stop_token_ids=self._stop_token_ids,
                    sampling=sampling,
                    seed=stable_hash(f"{self._seed}/{self._request_count}/{i}/{sample}"),
                )
                for i, ids in enumerate(prompts)
                for sample in range(request.n)
            )
        )
        return {
            "prompt_ids": prompts,
            "completion_ids": [list(completion.ids) for completion in completions],
            "logprobs": [list(completion.logprobs) for completion in completions],
        }


class PolicyServer:
    """An HTTP server, as a context manager. Answers 503 unless `completions` is set."""

    def __init__(self, port: int) -> None:
        self.completions: VllmShim | None = None
        handler = type("Handler", (_Handler,), {"policy_server": self})
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError as error:
            raise ConfigError(
                f"Cannot serve the policy at port {port}: {error}. Set another `vllm_server_port`, "
                "and use it in the script's URL."
            ) from None
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PolicyServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    policy_server: PolicyServer

    def do_GET(self) -> None:
        if self.path.rstrip("/") == "/health":
            self._send(200, {"status": "ok"})
        else:
            self._send(404, {"error": f"There is no {self.path} here, only /health/."})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.rstrip("/") != "/generate":
            self._send(404, {"error": f"There is no {self.path} here, only /generate/."})
        elif (completions := self.policy_server.completions) is None:
            message = "The policy is being trained. Send requests only from the rollout function."
            self._send(503, {"error": message})
        else:
            try:
                self._send(200, run_sync(completions.generate(body)))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                location = ".".join(map(str, first["loc"]))
                self._send(400, {"error": f"`{location}`: {first['msg']}"})
            except LudusError as error:
                self._send(400, {"error": str(error)})

    def _send(self, status: int, content: JsonObject) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests to stderr."""
