"""TRL's trainers and configs for scripts that were written for other versions of TRL.

`model` may be `smollm2`, and `SFTConfig` takes `max_seq_length`. `GRPOTrainer` accepts rollout
functions of three arguments, `rollout_func(prompts, args, processing_class)`: they get each prompt
of a batch once, as text, and return `num_generations` completions for it. If a script samples from
a vLLM server and there is none, the policy under training is served in its place. In TRL's tool
loop, the rollouts of an `environment_factory` end when their environment is done.

Importing this module imports TRL.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trl
from trl import GRPOConfig

from ludus.client.event_loop import run_sync
from ludus.errors import ConfigError
from ludus.policy import smollm2
from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.load import Policy
from ludus.policy.runtime import start_engine
from ludus.train.trl_compat.environment_factory import offer_environment_tools
from ludus.train.trl_compat.rollout_func import call_legacy, is_legacy
from ludus.train.trl_compat.vllm_shim import PolicyServer, VllmShim

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.trainer_utils import TrainOutput

__all__ = ["GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"]


class SFTConfig(trl.SFTConfig):  # type: ignore[misc]  # TRL is not typed.
    """TRL's config, which also takes `max_seq_length`, the former name of `max_length`."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        if "max_seq_length" in fields:
            fields.setdefault("max_length", fields.pop("max_seq_length"))
        super().__init__(*args, **fields)


class SFTTrainer(trl.SFTTrainer):  # type: ignore[misc]
    """TRL's trainer; `model` may be `smollm2`."""

    def __init__(self, model: str | PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        super().__init__(_resolve_model(model), *args, **kwargs)


def _resolve_model(model: str | PreTrainedModel) -> str | PreTrainedModel:
    """The folder of `smollm2`, which is downloaded if necessary; any other model as it is."""
    if model != smollm2.NAME:
        return model
    return str(smollm2.model_folder())


class _RowIds(list[int]):
    """The token ids of a row of the batch, which keep its number when ids are appended."""

    def __init__(self, ids: Iterable[int], row: int) -> None:
        super().__init__(ids)
        self.row = row

    def __add__(self, ids: list[int]) -> _RowIds:  # type: ignore[override]
        return _RowIds([*self, *ids], self.row)


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer that also accepts `rollout_func(prompts, args, processing_class)`.

    A rollout ends when its environment has a true `done` or `_done`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        arguments = inspect.signature(trl.GRPOTrainer).bind(*args, **kwargs).arguments
        arguments["model"] = _resolve_model(arguments["model"])
        function: Callable[..., Any] | None = arguments.get("rollout_func")
        self._user_rollout_func = function
        self._is_legacy = function is not None and is_legacy(function)
        self._server_port: int | None = None
        """The port at which the policy is served during training."""
        self._policy_server: PolicyServer | None = None
        self._generator: RequestBatcher | None = None
        config: GRPOConfig | None = arguments.get("args")
        if config is not None and config.use_vllm:
            replaces_server = self._is_legacy and config.vllm_mode == "server"
            if replaces_server or importlib.util.find_spec("vllm") is None:
                arguments["args"] = self._without_vllm(config)
        if self._is_legacy or self._server_port is not None:
            arguments["rollout_func"] = self._call_rollout_func
        super().__init__(**arguments)
        in_one_process = self._is_legacy or self._server_port is not None
        if in_one_process and self.accelerator.num_processes > 1:
            raise ConfigError(
                "This rollout function can be run in one process only, got "
                f"{self.accelerator.num_processes}."
            )
        offer_environment_tools(self)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; if a script of TRL needs a vLLM server, the policy is served in its place."""
        with self._run_policy_server():
            return super().train(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; if a script of TRL needs a vLLM server, the policy is served in its place."""
        with self._run_policy_server():
            measured: dict[str, float] = super().evaluate(*args, **kwargs)
            return measured

    def _tool_call_loop(self, prompts: Any, prompt_ids: list[list[int]], *rest: Any) -> Any:
        numbered = [_RowIds(ids, row) for row, ids in enumerate(prompt_ids)]
        return super()._tool_call_loop(prompts, numbered, *rest)

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        *rest: Any,
        **kw: Any,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Generate nothing for finished episodes; TRL would, and train on it."""

        def is_done(ids: list[int]) -> bool:
            environment = self.environments[ids.row] if isinstance(ids, _RowIds) else None
            return any(getattr(environment, name, False) is True for name in ("done", "_done"))

        generate = super()._generate_single_turn
        # Images are not laid out by rows, ranks must generate together, and TRL takes a rollout
        # without an end-of-turn token for a truncated one.
        can_skip = not (images or multimodal_fields or self.mask_truncated_completions)
        can_skip = can_skip and self.accelerator.num_processes == 1
        active = [row for row, ids in enumerate(prompt_ids) if not (can_skip and is_done(ids))]
        new: list[list[int]] = []
        new_logprobs: list[list[float]] | None = []
        if active:
            rows = [list(prompt_ids[row]) for row in active]
            new, new_logprobs = generate(rows, images, multimodal_fields, *rest, **kw)
        if len(active) == len(prompt_ids):
            return new, new_logprobs
        ids: list[list[int]] = [[] for _ in prompt_ids]
        logprobs: list[list[float]] = [[] for _ in prompt_ids]
        for number, row in enumerate(active):
            ids[row] = new[number]
            if new_logprobs is not None:
                logprobs[row] = new_logprobs[number]
        return ids, None if new_logprobs is None else logprobs

    def _without_vllm(self, config: GRPOConfig) -> GRPOConfig:
        """Return the config without vLLM: the policy is sampled from in this process."""
        if self._user_rollout_func is None or config.vllm_mode == "colocate":
            notice = "Completions come from transformers' generate, because vLLM is not installed."
        else:
            url = config.vllm_server_base_url
            self._server_port = int(
                (urlsplit(url).port if url else None) or config.vllm_server_port
            )
            notice = f"The policy is served at port {self._server_port} in place of vLLM."
        print(notice, file=sys.stderr)
        without = copy.copy(config)
        without.use_vllm = False
        return without

    @contextmanager
    def _run_policy_server(self) -> Iterator[None]:
        # `train` may call `evaluate`: then the server runs already.
        if self._policy_server is not None or self._server_port is None:
            yield
            return
        try:
            with PolicyServer(self._server_port) as self._policy_server:
                yield
        finally:
            self._policy_server = None
            if self._generator is not None:
                run_sync(self._generator.close())
            self._generator = None

    def _call_rollout_func(self, prompts: Sequence[Any], _: Any) -> dict[str, Any]:
        assert self._user_rollout_func is not None
        size = self.num_generations if self.model.training else self.num_generations_eval
        with self._serve_current_weights():
            if self._is_legacy:
                return call_legacy(self._user_rollout_func, prompts, self, size)
            output: dict[str, Any] = self._user_rollout_func(prompts, self)
            return output

    @contextmanager
    def _serve_current_weights(self) -> Iterator[None]:
        """Let the server answer requests with the current weights, in evaluation mode."""
        server = self._policy_server
        if server is None:
            yield
            return
        model = self.accelerator.unwrap_model(self.model_wrapped)
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
        server.completions = VllmShim(
            self._generator, self._tokenizer, stop_token_ids=self.eos_token_ids, seed=seed
        )
        try:
            yield
        finally:
            server.completions = None
            model.train(training)
