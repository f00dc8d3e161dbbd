"""`create_app` in OpenEnv's shape, for servers that were written for it.

    app = create_app(MazeEnvironment, MazeAction, MazeObservation, env_name="maze")

is run by `uvicorn server.app:app`, or any other ASGI server.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from ludus.environment.introspection import build_env_spec
from ludus.errors import ConfigError
from ludus.protocol.action_tools import takes_tool_calls
from ludus.serve.app import create_app as app_of
from ludus.serve.config import ServeConfig


def create_app(
    env: Callable[[], Any],
    action_cls: type[BaseModel],
    observation_cls: type[BaseModel],
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: Any = None,
    *,
    state_cls: type[BaseModel] | None = None,
    reset_observation_cls: type[BaseModel] | None = None,
    token: str | None = None,
) -> FastAPI:
    """The application that serves one environment.

    Args:
        env: the environment's class, or a function that makes one; not an instance.
        action_cls: what a step takes.
        observation_cls: what a step gives.
        env_name: what clients are told the environment is called.
        max_concurrent_envs: how many sessions there may be at once; if not given, one for a class
            that does not say that it supports several, and else as many as `ludus serve` allows.
        concurrency_config: OpenEnv's own, instead of `max_concurrent_envs`.
        state_cls: what the state is; read off the class if not given.
        reset_observation_cls: what a reset gives, if not the same as a step.
        token: bearer token that clients must send; LUDUS_TOKEN if not given.
    """
    if not callable(env):
        raise ConfigError(
            f"create_app takes a class or a function that makes environments, and was given an "
            f"instance of {type(env).__name__}."
        )
    if max_concurrent_envs is not None and concurrency_config is not None:
        raise ConfigError("Give max_concurrent_envs or concurrency_config, not both.")
    contract = build_env_spec(env, name=env_name)
    calls_tools = takes_tool_calls(action_cls.model_json_schema())
    contract = replace(
        contract,
        action=action_cls,
        observation=observation_cls,
        reset_observation=reset_observation_cls or observation_cls,
        state=state_cls or contract.state,
        named_calls=contract.named_calls or calls_tools,
    )
    settings = ServeConfig(token=token or os.environ.get("LUDUS_TOKEN") or None)
    most = max_concurrent_envs
    if concurrency_config is not None:
        most = concurrency_config.max_concurrent_envs
        idle = concurrency_config.session_timeout
        settings = replace(settings, idle_timeout=settings.idle_timeout if idle is None else idle)
    if most is None:
        most = settings.max_sessions if contract.concurrent else 1
    if most > 1 and not contract.concurrent:
        raise ConfigError(
            f"max_concurrent_envs is {most}, but {contract.cls.__name__} does not say that several "
            "of it may run in one process. Set SUPPORTS_CONCURRENT_SESSIONS = True if they may."
        )
    return app_of(contract, replace(settings, max_sessions=most))
