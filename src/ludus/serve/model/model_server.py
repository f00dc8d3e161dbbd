"""Serve a local model until a signal arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ludus.policy.agent import PolicyAgent
from ludus.policy.model_ref import find_local_model
from ludus.serve.listening import (
    DrainingServer,
    bind_socket,
    build_uvicorn_config,
    raise_file_limit,
)
from ludus.serve.model.generator import Generator
from ludus.serve.model.model_app import create_model_app
from ludus.serve.model.model_config import ModelServeConfig, check_model_config
from ludus.serve.model.model_metrics import ModelMetrics
from ludus.serve.model.recorder import Recorder
from ludus.serve.write_timeout import TimedHttpProtocol


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server that is up tells about itself."""

    url: str
    name: str
    engine: str
    max_batch: int


def serve_model(
    agent: PolicyAgent, config: ModelServeConfig, *, on_ready: Callable[[ServedModel], None]
) -> int:
    """Load the model and serve it; returns how many episodes were recorded.

    The port and the run folder are opened first, because loading may take minutes.
    """
    check_model_config(config)
    agent.check()
    with ExitStack() as stack:
        listener = stack.enter_context(bind_socket(config.host, config.port))
        config = replace(config, port=listener.getsockname()[1])
        recorder = None
        if config.record is not None:
            timeout = config.session_timeout
            recorder = Recorder(config.record, agent.describe(), session_timeout=timeout)
            stack.callback(recorder.close)
        asyncio.run(agent.prepare())
        raise_file_limit()
        server = build_model_server(agent, config, recorder=recorder, on_ready=on_ready)
        server.run(sockets=[listener])
    return 0 if recorder is None else recorder.num_recorded


def build_model_server(
    agent: PolicyAgent,
    config: ModelServeConfig,
    *,
    recorder: Recorder | None = None,
    on_ready: Callable[[ServedModel], None] = lambda served: None,
) -> DrainingServer:
    """The server of an agent whose model is loaded."""
    runtime = agent.runtime
    metrics = ModelMetrics(runtime.batcher.stats)
    generator = Generator(runtime, config, metrics, max_batch=agent.max_batch)
    names = served_names(agent.model, config.served_name)
    app = create_model_app(generator, metrics, config, names=names, recorder=recorder)
    uvicorn_config = build_uvicorn_config(
        app, http=partial(TimedHttpProtocol, send_timeout=config.send_timeout), ws="none"
    )
    served = ServedModel(config.url, names[0], agent.engine_description, agent.max_batch)
    return DrainingServer(uvicorn_config, generator.drain, lambda: on_ready(served))


def served_names(model: str, served_name: str | None) -> tuple[str, ...]:
    """The names under which clients find the model; the first is the one that it has."""
    local = find_local_model(model)
    default = Path(local.path).name if local is not None else model
    return tuple(dict.fromkeys(name for name in (served_name, default, model) if name))
