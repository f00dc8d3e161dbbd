"""The policy under training behind a local address, for scripts that ask a server for completions.

POST /generate/ takes prompts and sampling settings and answers with ids and log-probabilities, as
TRL's server for vLLM did when such scripts were written; GET /health/ says that it is there. It
listens on the loopback device only. When the policy may be asked is the trainer's business.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ludus.client.event_loop import run_sync
from ludus.data.episode import digest_64
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
"""What a request may say besides, as long as it changes nothing."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a request asks for."""

    prompts: Sequence[str | Sequence[int]]
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.prompts, list) or not self.prompts:
            raise ConfigError("`prompts` must be a list of texts or of ids, with something in it.")
        if self.n < 1 or self.max_tokens < 1:
            raise ConfigError("`n` and `max_tokens` must be 1 or more.")

    @classmethod
    def parse(cls, payload: Any) -> CompletionRequest:
        if not isinstance(payload, Mapping) or "prompts" not in payload:
            raise ConfigError('A request is a JSON object with "prompts" in it.')
        known = {each.name for each in fields(cls)}
        for name in payload.keys() - known:
            if payload[name] not in _NO_OP_VALUES.get(name, ()):
                raise ConfigError(
                    f"{name}={payload[name]!r} cannot be asked for here; leave it out."
                )
        return cls(**{name: payload[name] for name in known & payload.keys()})

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_p, self.top_k if self.top_k > 0 else None)


class CompletionService:
    """Completions of texts, from a generator."""

    def __init__(
        self, generator: RequestBatcher, tokenizer: Any, *, stop_token_ids: Sequence[int], seed: str
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._stop_token_ids = frozenset(stop_token_ids)
        self._seed = seed
        self._request_count = 0

    async def generate(self, payload: Any) -> dict[str, Any]:
        """Ids of each prompt once, and of `n` completions of each, in order."""
        wish = CompletionRequest.parse(payload)
        self._request_count += 1
        prompts = [self._tokenize(prompt) for prompt in wish.prompts]
        sampled = await asyncio.gather(
            *(
                self._generator.sample(
                    ids,
                    max_tokens=wish.max_tokens,
                    stop_token_ids=self._stop_token_ids,
                    sampling=wish.sampling,
                    seed=digest_64(f"{self._seed}/{self._request_count}/{place}/{member}"),
                )
                for place, ids in enumerate(prompts)
                for member in range(wish.n)
            )
        )
        return {
            "prompt_ids": prompts,
            "completion_ids": [list(each.ids) for each in sampled],
            "logprobs": [list(each.logprobs) for each in sampled],
        }

    def _tokenize(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return list(self._tokenizer(text=prompt)["input_ids"])
        return [int(token) for token in prompt]


class PolicyServer:
    """Listens as long as it is entered; answers while `completions` is set."""

    def __init__(self, port: int) -> None:
        self.completions: CompletionService | None = None
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _build_handler(self._respond))
        except OSError as error:
            raise ConfigError(
                f"Port {port}, at which the policy is to be served, cannot be had: {error}. Set "
                "another with vllm_server_port, and in the script's address."
            ) from None
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PolicyServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, body: bytes) -> tuple[int, dict[str, Any]]:
        completions = self.completions
        if completions is None:
            return 503, {"error": "The policy is learning; ask from within the rollout function."}
        try:
            return 200, run_sync(completions.generate(json.loads(body)))
        except (LudusError, ValueError, TypeError) as error:
            return 400, {"error": str(error)}


def _build_handler(
    respond: Callable[[bytes], tuple[int, dict[str, Any]]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.rstrip("/") == "/health":
                self._send(200, {"status": "ok"})
            else:
                self._send(404, {"error": f"There is no {self.path} here, only /health/."})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.rstrip("/") == "/generate":
                self._send(*respond(body))
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
            """Not a line for each request."""

    return Handler
