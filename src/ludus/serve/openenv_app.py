"""`create_app` with OpenEnv's signature, for servers that were written for it.

    app = create_app(MazeEnvironment, MazeAction, MazeObservation, env_name="maze")

Run it with `uvicorn server.app:app`, or with any other ASGI server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from ludus.data.hub import HUB_ORIGIN
from ludus.environment.introspection import build_env_spec
from ludus.errors import ConfigError
from ludus.serve.app import create_app as build_app
from ludus.serve.config import (
    HOSTS_VARIABLE,
    ORIGINS_VARIABLE,
    ServeConfig,
    add_names,
    check_listen_config,
    limit_sessions,
)

_MODES = ("simulation", "production")


def create_app(
    env: Callable[[], Any],
    action_cls: type[BaseModel],
    observation_cls: type[BaseModel],
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: Any = None,
    gradio_builder: Any = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    state_cls: type[BaseModel] | None = None,
    *,
    mode: str | None = None,
    reset_observation_cls: type[BaseModel] | None = None,
    token: str | None = None,
    allow_hosts: Sequence[str] | None = None,
    allow_origins: Sequence[str] | None = None,
) -> FastAPI:
    """Build the application with OpenEnv's signature.

    Args:
        env: the class of the environment, or a factory function, which is called once here to
            learn the class; not an instance.
        env_name: the name of the environment for clients.
        max_concurrent_envs: maximum number of concurrent sessions. By default one, or as many as
            `ludus serve` allows if the class supports concurrent sessions.
        concurrency_config: OpenEnv's own config, instead of `max_concurrent_envs`.
        gradio_builder: ignored, like the four arguments after it: there is the play page.
        mode: `production` leaves out the routes /reset, /step and /state; by default OPENENV_MODE.
        token: bearer token that clients must send; by default LUDUS_TOKEN.
        allow_hosts: accepted Host headers, as of `ludus serve`, besides LUDUS_ALLOW_HOSTS.
        allow_origins: accepted Origin headers, besides LUDUS_ALLOW_ORIGINS; by default the Hub's in
            a Space, which is shown in a frame of the Hub.
    """
    if not callable(env):
        raise ConfigError(
            "`env` must be a class or a function that builds environments, got an instance of "
            f"{type(env).__name__}."
        )
    if max_concurrent_envs is not None and concurrency_config is not None:
        raise ConfigError("Give `max_concurrent_envs` or `concurrency_config`, not both.")
    mode = str(getattr(mode, "value", mode) or os.environ.get("OPENENV_MODE") or _MODES[0]).lower()
    if mode not in _MODES:
        raise ConfigError(f"`mode` must be one of {', '.join(_MODES)}, got {mode!r}.")
    if allow_origins is None and "SPACE_ID" in os.environ:
        allow_origins = [HUB_ORIGIN]
    env_spec = build_env_spec(env, name=env_name)
    env_spec = replace(
        env_spec,
        note=None,
        action=action_cls,
        observation=observation_cls,
        reset_observation=reset_observation_cls or observation_cls,
        state=state_cls or env_spec.state,
    )
    config = ServeConfig(
        token=token or os.environ.get("LUDUS_TOKEN") or None,
        allow_hosts=add_names(allow_hosts, variable=HOSTS_VARIABLE),
        allow_origins=add_names(allow_origins, variable=ORIGINS_VARIABLE),
    )
    check_listen_config(config)
    max_sessions = max_concurrent_envs
    if concurrency_config is not None:
        max_sessions = concurrency_config.max_concurrent_envs
        if concurrency_config.session_timeout is not None:
            config = replace(config, idle_timeout=concurrency_config.session_timeout)
    config = limit_sessions(replace(config, max_sessions=max_sessions), env_spec)
    if config.sessions > 1 and not env_spec.concurrent:
        raise ConfigError(
            f"`max_concurrent_envs` is {config.sessions}, but {env_spec.cls.__name__} does not say "
            "that several instances may run in one process. If they may, set "
            "SUPPORTS_CONCURRENT_SESSIONS = True."
        )
    app = build_app(env_spec, config)
    if mode == "production":
        control = ("/reset", "/step", "/state")
        app.router.routes = [
            route for route in app.routes if getattr(route, "path", "") not in control
        ]
    return app
