"""The files that OpenEnv's tools expect of an environment, as `openenv init` writes them."""

from __future__ import annotations

import json

from ludus.client.container import SERVER_PORT
from ludus.data.hub import HUB_ORIGIN, to_single_line
from ludus.publish.env_source import EnvSource

SPACE_HOSTS = "*.hf.space"
"""Hosts that the server accepts besides loopback names."""
MANIFEST_FILE = "openenv.yaml"
ANY_REWARD = (-1_000_000.0, 1_000_000.0)
"""The declared range of unbounded or unknown rewards: OpenEnv wants two finite numbers."""


def manifest(
    name: str,
    version: str = "0.1.0",
    description: str = "",
    *,
    max_reward: float | None = 1.0,
) -> str:
    """OpenEnv's manifest. Every text is JSON, which is valid YAML.

    Its block `validation`, which `openenv validate` reads, is that of `openenv init` with the range
    of rewards that `max_reward` of the environment allows.
    """
    rewards = (0.0, float(max_reward)) if max_reward is not None and max_reward > 0 else ANY_REWARD
    values = {
        "spec_version": 1,
        "name": name,
        "version": version,
        "description": to_single_line(description),
        "type": "space",
        "runtime": "fastapi",
        "app": "server.app:app",
        "port": SERVER_PORT,
    }
    lines = [f"{key}: {json.dumps(each, ensure_ascii=False)}" for key, each in values.items()]
    block = f"""\
validation:
  reward:
    range: {list(rewards)}
    oracle_tolerance: 0.0
    floor_margin: 0.1
  resources:
    cpu: 1.0
    memory_mb: 1024
    disk_mb: 512
    episode_timeout_s: 60.0
  capabilities:
    verifier:
      kind: reward_channel
  types:
    tags: [{name}]
"""
    return "\n".join((*lines, block))


def app_module(spec: str) -> str:
    """The application that the manifest names."""
    return f'''\
"""The ASGI application that openenv.yaml names: `uvicorn server.app:app`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from ludus.environment.registry import find_environment
from ludus.serve.app import create_app
from ludus.serve.config import ServeConfig, add_names

env_spec = find_environment({spec!r})
config = ServeConfig(
    host="0.0.0.0",
    max_sessions=1024 if env_spec.concurrent else 1,
    token=os.environ.get("LUDUS_TOKEN"),
    allow_hosts=add_names(["{SPACE_HOSTS}"], variable="LUDUS_ALLOW_HOSTS"),
    allow_origins=add_names(["{HUB_ORIGIN}"], variable="LUDUS_ALLOW_ORIGINS"),
)
app = create_app(env_spec, config)


def main() -> None:
    """Serve it on port {SERVER_PORT}."""
    import uvicorn

    uvicorn.run(app, host=config.host, port={SERVER_PORT})


if __name__ == "__main__":
    main()
'''


def client_package(source: EnvSource) -> dict[str, str]:
    """The files of a package that installs OpenEnv's client of a Space, without the server.

    `AutoEnv` looks for the distribution `openenv-NAME_env`, and in it for the classes by name.
    """
    package = source.slug if source.slug.endswith("_env") else f"{source.slug}_env"
    prefix = "".join(word.capitalize() for word in package.replace("_env", "").split("_"))
    # A class cannot be named after a game such as 2048.
    prefix = prefix if prefix[:1].isalpha() else f"Env{prefix}"
    client = f'''\
"""A client of the environment; actions and observations are dictionaries, see /schema.

    with {prefix}Env(base_url="http://localhost:{SERVER_PORT}").sync() as client:
        print(client.reset().observation)
"""

from openenv.core import GenericAction, GenericEnvClient

{prefix}Observation = dict


class {prefix}Action(GenericAction):
    """An action, with its fields as keyword arguments."""


class {prefix}Env(GenericEnvClient):
    """A session on a server of the environment."""
'''
    project = f"""\
# Installs the client; the server needs the extra, or the image of the Dockerfile.
[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = "openenv-{package}"
version = {json.dumps(source.version)}
description = {json.dumps(to_single_line(source.env_spec.description))}
requires-python = ">=3.11"
dependencies = ["openenv>=0.10"]
dynamic = ["optional-dependencies"]

[project.scripts]
server = "{package}.server.app:main"

[tool.setuptools]
packages = ["{package}", "{package}.server"]
package-dir = {{ "{package}" = ".", "{package}.server" = "server" }}
package-data = {{ "{package}" = ["{MANIFEST_FILE}"] }}

[tool.setuptools.dynamic]
optional-dependencies.server = {{ file = ["requirements.txt"] }}
"""
    names = ", ".join(f"{prefix}{kind}" for kind in ("Action", "Env", "Observation"))
    exports = f"from .client import {names}\n\n__all__ = {names.split(', ')!r}\n"
    return {"client.py": client, "pyproject.toml": project, "__init__.py": exports}
