"""A stand-in for TRL's vLLM server that samples from the policy under training.

For scripts that request completions over HTTP: POST /generate/ takes prompts and sampling
parameters and returns token ids and log-probabilities, as TRL's vLLM server did when such scripts
were written; GET /health/ answers that it is up. It listens on loopback only.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ludus.client.event_loop import run_sync
from ludus.data.files import stable_hash
from ludus.errors import ConfigError, LudusError
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams

_NO_OP_VALUES: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0, None),
    "min_p": (0.0, None),
    "truncate_prompt_tokens": (None,),
    "structured_outputs_regex": (None,),
    "guided_decoding_regex": (None,),
    "generation_kwargs": (None, {}),
    "images": (None, []),
    "logprobs": (None, 0, 1),
}
"""Parameters that are accepted only with values that have no effect."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The body of POST /generate/."""

    prompts: Sequence[str | Sequence[int]]
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.prompts, list) or not self.prompts:
            raise ConfigError("`prompts` must be a non-empty list of texts or of token ids.")
        if self.n < 1 or self.max_tokens < 1:
            raise ConfigError("`n` and `max_tokens` must be positive.")

    @classmethod
    def parse(cls, payload: Any) -> CompletionRequest:
        if not isinstance(payload, Mapping) or "prompts" not in payload:
            raise ConfigError("The request must be a JSON object with `prompts`.")
        supported = {field.name for field in fields(cls)}
        for name in payload.keys() - supported:
            if payload[name] not in _NO_OP_VALUES.get(name, ()):
                raise ConfigError(f"{name}={payload[name]!r} is not supported.")
        return cls(**{name: payload[name] for name in supported & payload.keys()})

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_p, self.top_k if self.top_k > 0 else None)


class CompletionService:
    """Samples completions from the policy's current weights."""

    def __init__(
        self, generator: RequestBatcher, tokenizer: Any, *, stop_token_ids: Sequence[int], seed: str
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._stop_token_ids = frozenset(stop_token_ids)
        self._seed = seed
        self._request_count = 0

    async def generate(self, payload: Any) -> dict[str, Any]:
        """Return the ids of each prompt once, and of its `n` completions, in order."""
        request = CompletionRequest.parse(payload)
        self._request_count += 1
        prompts = [
            list(self._tokenizer(text=prompt)["input_ids"])
            if isinstance(prompt, str)
            else [int(token) for token in prompt]
            for prompt in request.prompts
        ]
        completions = await asyncio.gather(
            *(
                self._generator.sample(
                    ids,
                    max_tokens=request.max_tokens,
                    stop_token_ids=self._stop_token_ids,
                    sampling=request.sampling,
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
        self.completions: CompletionService | None = None
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _build_handler(self))
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

    def respond(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and content of the reply to a POST /generate/."""
        completions = self.completions
        if completions is None:
            message = "The policy is being trained. Send requests only from the rollout function."
            return 503, {"error": message}
        try:
            return 200, run_sync(completions.generate(json.loads(body)))
        except (LudusError, ValueError, TypeError) as error:
            return 400, {"error": str(error)}


def _build_handler(server: PolicyServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.rstrip("/") == "/health":
                self._send(200, {"status": "ok"})
            else:
                self._send(404, {"error": f"There is no {self.path} here, only /health/."})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.rstrip("/") == "/generate":
                self._send(*server.respond(body))
            else:
                self._send(404, {"error": f"There is no {self.path} here, only /generate/."})

        def _send(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests to stderr."""

    return Handler
