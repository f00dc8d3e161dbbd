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
from ludus.policy.dialect import ChatFormat
from ludus.policy.engines import choose_engine
from ludus.policy.generate import RequestBatcher
from ludus.policy.load import Policy
from ludus.train.trl import three_arguments
from ludus.train.trl.environment import offer_exactly
from ludus.train.trl.serving import Completions, PolicyServer

__all__ = ["GRPOConfig", "GRPOTrainer"]

_NO_VLLM = "vLLM is not installed"


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]  # TRL is not typed.
    """Takes what TRL's takes, and rollout functions of the form (prompts, args, tokenizer)."""

    def __init__(self, *given: Any, **named: Any) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        asked = inspect.signature(super().__init__).bind(*given, **named).arguments
        self._function: Any = asked.get("rollout_func")
        self._three = self._function is not None and three_arguments.takes_three(self._function)
        self._served: int | None = None
        """The port at which the policy is served while it is trained."""
        self._server: PolicyServer | None = None
        self._generator: RequestBatcher | None = None
        config = asked.get("args")
        if config is not None and _wants_server(config) and (self._three or not _has_vllm()):
            asked["args"] = self._without_server(config)
        if self._three or self._served is not None:
            asked["rollout_func"] = self._roll_out
        super().__init__(**asked)
        if self._served is not None and not self._three and self.accelerator.num_processes > 1:
            raise ConfigError("A policy that is served here is trained by one process; start one.")
        offer_exactly(self)

    def train(self, *given: Any, **named: Any) -> Any:
        with self._serving():
            return super().train(*given, **named)

    def evaluate(self, *given: Any, **named: Any) -> Any:
        with self._serving():
            return super().evaluate(*given, **named)

    def _without_server(self, config: GRPOConfig) -> GRPOConfig:
        """The same settings, with the policy sampled from in this process."""
        why = "a rollout function of three arguments asks it" if self._three else _NO_VLLM
        if self._function is None:
            _say(f"Completions come from transformers' generate, because {_NO_VLLM}.")
        else:
            self._served = _port(config)
            _say(f"The policy itself answers at port {self._served}, because {why}.")
        plain = copy.copy(config)
        plain.use_vllm = False
        return plain

    @contextmanager
    def _serving(self) -> Iterator[None]:
        wanted = self._served is not None and self.accelerator.is_main_process
        if self._server is not None or not wanted:
            yield
            return
        try:
            with PolicyServer(self._served or 0) as self._server:
                yield
        finally:
            self._server = None
            if self._generator is not None:
                run_sync(self._generator.close())
            self._generator = None

    def _roll_out(self, prompts: Sequence[Any], _: Any) -> Any:
        members = self.num_generations if self.model.training else self.num_generations_eval
        with self._answering():
            if self._three:
                return three_arguments.call(self._function, prompts, self, members)
            return self._function(prompts, self)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """While it lasts, the server answers with the policy as it is now."""
        server = self._server
        if server is None:
            yield
            return
        with unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        ) as model:
            learning = model.training
            generator = self._renewed(model.eval())
            seed = f"{self.args.seed}/{self.state.global_step}/{self._step}"
            server.completions = Completions(
                generator, self._tokenizer, stop_token_ids=self.eos_token_ids, seed=seed
            )
            try:
                yield
            finally:
                server.completions = None
                model.train(learning)

    def _renewed(self, model: Any) -> RequestBatcher:
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


def _wants_server(config: GRPOConfig) -> bool:
    return bool(config.use_vllm) and config.vllm_mode == "server"


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def _port(config: GRPOConfig) -> int:
    address = config.vllm_server_base_url
    return int((urlsplit(address).port if address else None) or config.vllm_server_port)


def _say(words: str) -> None:
    print(words, file=sys.stderr)
