"""TRL's GRPOTrainer for scripts that were written for other versions of TRL.

It also accepts rollout functions of three arguments. Where a script samples from a vLLM server and
there is none, the policy under training is served in its place. Importing this module imports TRL.
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
from ludus.policy.load import Policy
from ludus.policy.runtime import start_engine
from ludus.train.trl_compat import legacy_rollout_func
from ludus.train.trl_compat.compat_models import resolve_known_model
from ludus.train.trl_compat.environment_factory import offer_environment_tools
from ludus.train.trl_compat.finished_episodes import FinishedEpisodesMixin
from ludus.train.trl_compat.vllm_shim import CompletionService, PolicyServer

__all__ = ["GRPOConfig", "GRPOTrainer"]


class GRPOTrainer(FinishedEpisodesMixin, trl.GRPOTrainer):  # type: ignore[misc]  # TRL is not typed.
    """TRL's trainer that also accepts `rollout_func(prompts, args, processing_class)`.

    Rollouts end when their environment is `done`, and `model` may be `smollm2`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        arguments = inspect.signature(trl.GRPOTrainer).bind(*args, **kwargs).arguments
        arguments["model"] = resolve_known_model(arguments["model"])
        self._user_rollout_func: Any = arguments.get("rollout_func")
        function = self._user_rollout_func
        self._is_legacy = function is not None and legacy_rollout_func.is_legacy(function)
        self._server_port: int | None = None
        """The port at which the policy is served during training."""
        self._policy_server: PolicyServer | None = None
        self._generator: RequestBatcher | None = None
        config: Any = arguments.get("args")
        uses_vllm = config is not None and config.use_vllm
        has_vllm = importlib.util.find_spec("vllm") is not None
        replaces_server = self._is_legacy and uses_vllm and config.vllm_mode == "server"
        if replaces_server or (uses_vllm and not has_vllm):
            arguments["args"] = self._without_vllm(config)
        if self._is_legacy or self._server_port is not None:
            arguments["rollout_func"] = self._call_rollout_func
        super().__init__(**arguments)
        needs_one_process = self._server_port is not None and not self._is_legacy
        if needs_one_process and self.accelerator.num_processes > 1:
            raise ConfigError(
                "Without vLLM this rollout function can be run in one process only, got "
                f"{self.accelerator.num_processes}."
            )
        offer_environment_tools(self)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; if a script of TRL needs a vLLM server, the policy is served in its place."""
        with self._run_policy_server():
            return super().train(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; if a script of TRL needs a vLLM server, the policy is served in its place."""
        with self._run_policy_server():
            return super().evaluate(*args, **kwargs)

    def _without_vllm(self, config: GRPOConfig) -> GRPOConfig:
        """Return the config without vLLM: the policy is sampled from in this process."""
        reason = "vLLM is not installed"
        if self._user_rollout_func is None or config.vllm_mode == "colocate":
            notice = f"Completions come from transformers' generate, because {reason}."
        else:
            url = config.vllm_server_base_url
            port = (urlsplit(url).port if url else None) or config.vllm_server_port
            self._server_port = int(port)
            if self._is_legacy:
                reason = "the rollout function takes three arguments"
            notice = f"The policy is served at port {port} in place of vLLM, because {reason}."
        print(notice, file=sys.stderr)
        without = copy.copy(config)
        without.use_vllm = False
        return without

    @contextmanager
    def _run_policy_server(self) -> Iterator[None]:
        is_served = self._server_port is not None and self.accelerator.is_main_process
        # `train` may call `evaluate`: then the server runs already.
        if self._policy_server is not None or not is_served:
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
        size = self.num_generations if self.model.training else self.num_generations_eval
        with self._serve_current_weights():
            if self._is_legacy:
                return legacy_rollout_func.call_legacy(self._user_rollout_func, prompts, self, size)
            return self._user_rollout_func(prompts, self)

    @contextmanager
    def _serve_current_weights(self) -> Iterator[None]:
        """Let the server answer requests with the current weights, in evaluation mode."""
        server = self._policy_server
        if server is None:
            yield
            return
        with unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        ) as model:
            training = model.training
            model.eval()
            # Built once, which is slow; later it is only given the new weights.
            if self._generator is None:
                # Prompts arrive as text or ids: the chat format is only a placeholder.
                chat_format = ChatFormat(
                    "text", "own", template="", response_template={},
                    stop_token_ids=frozenset(self.eos_token_ids),
                )  # fmt: skip
                policy = Policy("policy", model, self._tokenizer, chat_format)
                self._generator, _ = start_engine(policy)
            self._generator.refresh()
            seed = f"{self.args.seed}/{self.state.global_step}/{self._step}"
            server.completions = CompletionService(
                self._generator, self._tokenizer, stop_token_ids=self.eos_token_ids, seed=seed
            )
            try:
                yield
            finally:
                server.completions = None
                model.train(training)
