"""`create_app` with OpenEnv's signature, for servers that were written for it.

    app = create_app(MazeEnvironment, MazeAction, MazeObservation, env_name="maze")

Run it with `uvicorn server.app:app`, or with any other ASGI server.
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
from ludus.serve.app import create_app as build_app
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
    """Build the application that serves one environment.

    Args:
        env: the class of the environment, or a factory function; not an instance.
        action_cls: the type of actions.
        observation_cls: the type of observations.
        env_name: the name of the environment for clients.
        max_concurrent_envs: maximum number of concurrent sessions. By default one, or as many as
            `ludus serve` allows where the class supports concurrent sessions.
        concurrency_config: OpenEnv's own config, instead of `max_concurrent_envs`.
        state_cls: the type of the state; by default read from the class.
        reset_observation_cls: the type of the observation of a reset, if it differs.
        token: bearer token that clients must send; by default LUDUS_TOKEN.
    """
    if not callable(env):
        raise ConfigError(
            "`env` must be a class or a function that builds environments, got an instance of "
            f"{type(env).__name__}."
        )
    if max_concurrent_envs is not None and concurrency_config is not None:
        raise ConfigError("Give `max_concurrent_envs` or `concurrency_config`, not both.")
    env_spec = build_env_spec(env, name=env_name)
    calls_tools = takes_tool_calls(action_cls.model_json_schema())
    env_spec = replace(
        env_spec,
        action=action_cls,
        observation=observation_cls,
        reset_observation=reset_observation_cls or observation_cls,
        state=state_cls or env_spec.state,
        named_calls=env_spec.named_calls or calls_tools,
    )
    config = ServeConfig(token=token or os.environ.get("LUDUS_TOKEN") or None)
    max_sessions = max_concurrent_envs
    if concurrency_config is not None:
        max_sessions = concurrency_config.max_concurrent_envs
        if concurrency_config.session_timeout is not None:
            config = replace(config, idle_timeout=concurrency_config.session_timeout)
    if max_sessions is None:
        max_sessions = (env_spec.max_sessions or config.max_sessions) if env_spec.concurrent else 1
    if max_sessions > 1 and not env_spec.concurrent:
        raise ConfigError(
            f"`max_concurrent_envs` is {max_sessions}, but {env_spec.cls.__name__} does not say "
            "that several instances may run in one process. If they may, set "
            "SUPPORTS_CONCURRENT_SESSIONS = True."
        )
    return build_app(env_spec, replace(config, max_sessions=max_sessions))
