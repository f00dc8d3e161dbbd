"""TRL's GRPOTrainer for scripts that were written for other versions of it.

Imported only when it is asked for, because TRL is imported with it. It takes rollout functions of
three arguments beside those of two; and where a script wants a vLLM server to sample from and
there can be none, the policy under training is served here. All else is TRL's.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import trl
from trl import GRPOConfig
from trl.models import unwrap_model_for_generation

from ludus.client.event_loop import run_sync
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.engine_selection import choose_engine
from ludus.policy.load import Policy
from ludus.train.trl_compat import legacy_rollout_func
from ludus.train.trl_compat.environment_factory import use_exact_tool_schemas
from ludus.train.trl_compat.vllm_shim import CompletionService, PolicyServer

__all__ = ["GRPOConfig", "GRPOTrainer"]

_VLLM_MISSING = "vLLM is not installed"


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]  # TRL is not typed.
    """Takes what TRL's takes, and rollout functions of the form (prompts, args, tokenizer)."""

    def __init__(self, *given: Any, **named: Any) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        asked = inspect.signature(super().__init__).bind(*given, **named).arguments
        self._user_rollout_func: Any = asked.get("rollout_func")
        self._is_legacy = self._user_rollout_func is not None and legacy_rollout_func.is_legacy(
            self._user_rollout_func
        )
        self._server_port: int | None = None
        """The port at which the policy is served while it is trained."""
        self._policy_server: PolicyServer | None = None
        self._generator: RequestBatcher | None = None
        config = asked.get("args")
        if (
            config is not None
            and _uses_vllm_server(config)
            and (self._is_legacy or not _has_vllm())
        ):
            asked["args"] = self._without_vllm(config)
        if self._is_legacy or self._server_port is not None:
            asked["rollout_func"] = self._call_rollout_func
        super().__init__(**asked)
        if (
            self._server_port is not None
            and not self._is_legacy
            and self.accelerator.num_processes > 1
        ):
            raise ConfigError("A policy that is served here is trained by one process; start one.")
        use_exact_tool_schemas(self)

    def train(self, *given: Any, **named: Any) -> Any:
        with self._run_policy_server():
            return super().train(*given, **named)

    def evaluate(self, *given: Any, **named: Any) -> Any:
        with self._run_policy_server():
            return super().evaluate(*given, **named)

    def _without_vllm(self, config: GRPOConfig) -> GRPOConfig:
        """The same settings, with the policy sampled from in this process."""
        why = "a rollout function of three arguments asks it" if self._is_legacy else _VLLM_MISSING
        if self._user_rollout_func is None:
            _print_notice(f"Completions come from transformers' generate, because {_VLLM_MISSING}.")
        else:
            self._server_port = _vllm_port(config)
            _print_notice(f"The policy itself answers at port {self._server_port}, because {why}.")
        plain = copy.copy(config)
        plain.use_vllm = False
        return plain

    @contextmanager
    def _run_policy_server(self) -> Iterator[None]:
        wanted = self._server_port is not None and self.accelerator.is_main_process
        if self._policy_server is not None or not wanted:
            yield
            return
        try:
            with PolicyServer(self._server_port or 0) as self._policy_server:
                yield
        finally:
            self._policy_server = None
            if self._generator is not None:
                run_sync(self._generator.close())
            self._generator = None

    def _call_rollout_func(self, prompts: Sequence[Any], _: Any) -> Any:
        members = self.num_generations if self.model.training else self.num_generations_eval
        with self._serve_current_weights():
            if self._is_legacy:
                return legacy_rollout_func.call_legacy(
                    self._user_rollout_func, prompts, self, members
                )
            return self._user_rollout_func(prompts, self)

    @contextmanager
    def _serve_current_weights(self) -> Iterator[None]:
        """While it lasts, the server answers with the policy as it is now."""
        server = self._policy_server
        if server is None:
            yield
            return
        with unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        ) as model:
            learning = model.training
            generator = self._refresh_generator(model.eval())
            seed = f"{self.args.seed}/{self.state.global_step}/{self._step}"
            server.completions = CompletionService(
                generator, self._tokenizer, stop_token_ids=self.eos_token_ids, seed=seed
            )
            try:
                yield
            finally:
                server.completions = None
                model.train(learning)

    def _refresh_generator(self, model: Any) -> RequestBatcher:
        """What samples from the model as it is now; made once, because that can take a while."""
        if self._generator is None:
            stops = frozenset(self.eos_token_ids)
            # Texts are gone on with as they are: nothing is ever said in it.
            unspoken = ChatFormat(
                "text", "own", template="", response_template={}, stop_token_ids=stops
            )
            policy = Policy("policy", model, self._tokenizer, unspoken)
            chosen = choose_engine(policy, fast=None, dtype=None, max_batch=None)
            self._generator = RequestBatcher(
                model,
                max_batch=chosen.max_batch,
                engine=chosen.engine,
                batch_wait_s=chosen.batch_wait_s,
            )
        self._generator.refresh()
        return self._generator


def _uses_vllm_server(config: GRPOConfig) -> bool:
    return bool(config.use_vllm) and config.vllm_mode == "server"


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def _vllm_port(config: GRPOConfig) -> int:
    address = config.vllm_server_base_url
    return int((urlsplit(address).port if address else None) or config.vllm_server_port)


def _print_notice(words: str) -> None:
    print(words, file=sys.stderr)
