"""The build context of an environment's image: Dockerfile, OpenEnv's manifest, card and sources."""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ludus.client.container import SERVER_PORT
from ludus.data.files import atomic_dir, existing_files, lock_dir
from ludus.data.hub import HUB_ORIGIN, code_block, hub_front_matter, to_single_line
from ludus.errors import ConfigError
from ludus.publish.env_source import EnvSource, looks_secret
from ludus.publish.hub_upload import SPACE, push_folder
from ludus.publish.run_card import CARD_FILE

SPACE_HOSTS = "*.hf.space"
"""Hosts that the server accepts besides loopback names."""
MANIFEST_FILE = "openenv.yaml"
ANY_REWARD = (-1_000_000.0, 1_000_000.0)
"""The declared range of unbounded or unknown rewards: OpenEnv wants two finite numbers."""
DOCKERFILE = "Dockerfile"
CONTEXT_NAMES = (
    DOCKERFILE,
    ".dockerignore",
    MANIFEST_FILE,
    CARD_FILE,
    "requirements.txt",
    "pyproject.toml",
    "__init__.py",
    "client.py",
    "server",
    "src",
)
"""Files and folders of a build context."""
_FIRST_LINE = "# Written by `ludus build`, which overwrites changes."
_DRAFT_PREFIX = ".ludus-build-"


def image_tag(source: EnvSource) -> str:
    """The default image tag, in OpenEnv's form: `echo-env:latest`."""
    name = source.slug.replace("_", "-").removesuffix("-env")
    return f"{name}-env:latest"


def write_build_context(
    source: EnvSource,
    out: Path,
    *,
    base_image: str | None = None,
    system_packages: Sequence[str] = (),
) -> None:
    """Write the build context to `out`, which must be new, empty or an older build context.

    It is based on the official image of this Python version, unless `base_image` names another.
    """
    files = {
        DOCKERFILE: dockerfile(source, base_image=base_image, system_packages=system_packages),
        # An image has these files and no others of the folder.
        ".dockerignore": "\n".join(
            ("*", *(f"!{name}" for name in CONTEXT_NAMES), "**/__pycache__\n")
        ),
        MANIFEST_FILE: manifest(
            source.slug,
            source.version,
            source.env_spec.description,
            max_reward=getattr(source.env_spec.cls, "max_reward", None),
        ),
        CARD_FILE: space_card(source),
        "requirements.txt": "\n".join((*source.requirements, "")),
        "server/__init__.py": "",
        "server/app.py": app_module(source.spec),
        **client_package(source),
    }
    with lock_dir(out), _open_context(out) as draft:
        source.copy_to(draft / "src")
        for name, text in files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_text(text, encoding="utf-8")


def _open_context(out: Path) -> AbstractContextManager[Path]:
    """Return a draft folder whose files move to `out`, which could be the user's own package."""
    if existing_files(out, _DRAFT_PREFIX):
        dockerfile = out / DOCKERFILE
        if not (dockerfile.is_file() and dockerfile.read_text().startswith(_FIRST_LINE)):
            raise ConfigError(
                f"{out} has files that `ludus build` did not write. "
                "Choose another folder with `out`."
            )
        secrets = [path.name for path in out.iterdir() if path.is_file() and looks_secret(path)]
        if secrets:
            raise ConfigError(
                f"{', '.join(sorted(secrets))} in {out} looks like a secret, and the folder "
                "is meant to be copied and uploaded. Move it elsewhere."
            )
    return atomic_dir(out, _DRAFT_PREFIX, marker=DOCKERFILE, owned=CONTEXT_NAMES)


def dockerfile(
    source: EnvSource, *, base_image: str | None = None, system_packages: Sequence[str] = ()
) -> str:
    """Render the Dockerfile: pinned packages, a non-root user, a health check."""
    health = (
        "import http.client as h; "
        f"c = h.HTTPConnection('127.0.0.1', {SERVER_PORT}, timeout=4); "
        "c.request('GET', '/health'); exit(c.getresponse().status != 200)"
    )
    command = [
        *("python", "-m", "ludus", "serve", source.spec),
        *("--host", "0.0.0.0", "--port", str(SERVER_PORT)),
        *("--allow-no-token", "--allow-host", SPACE_HOSTS, "--allow-origin", HUB_ORIGIN),
    ]
    apt = (
        "RUN apt-get update \\\n"
        f"    && apt-get install --yes --no-install-recommends {' '.join(system_packages)} \\\n"
        "    && rm -rf /var/lib/apt/lists/*\n"
    )
    return f"""\
{_FIRST_LINE}
FROM {base_image or f"python:{platform.python_version()}-slim"}

{apt if system_packages else ""}\
RUN useradd --uid 1000 --create-home ludus
WORKDIR /app
ENV PYTHONPATH=/app/src PYTHONUNBUFFERED=1

# The list is complete: what the packages need is in it, in exact versions.
COPY requirements.txt .
RUN pip install --no-cache-dir --no-deps -r requirements.txt

COPY . .
RUN python -m compileall -q src server

# Spaces run the container as this user.
USER 1000
EXPOSE {SERVER_PORT}
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \\
    CMD {json.dumps(["python", "-c", health])}
CMD {json.dumps(command)}
"""


def manifest(
    name: str,
    version: str = "0.1.0",
    description: str = "",
    *,
    max_reward: float | None = 1.0,
) -> str:
    """Render OpenEnv's manifest. Every text is JSON, which is valid YAML.

    Its `validation` block, which `openenv validate` reads, is the one of `openenv init`, with the
    range of rewards that the environment's `max_reward` allows.
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
    """Render a package with OpenEnv's client for a Space, without the server.

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

from openenv.core import GenericAction as {prefix}Action
from openenv.core import GenericEnvClient as {prefix}Env

{prefix}Observation = dict
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


def space_card(source: EnvSource) -> str:
    """Render README.md, with the front matter of a Space built from a Dockerfile."""
    env_spec, tag = source.env_spec, image_tag(source)
    head = hub_front_matter(
        {
            "title": to_single_line(env_spec.id),
            "emoji": "🎲",
            "colorFrom": "blue",
            "colorTo": "green",
            "sdk": "docker",
            "app_port": SERVER_PORT,
            "base_path": "/web",
            "tags": ["openenv", "ludus"],
        },
        [],
    )
    commands = f"""\
docker build --tag {tag} .
ludus play docker:{tag}
ludus collect docker:{tag}"""
    parts = [
        f"# {to_single_line(env_spec.id)}",
        "An environment for language-model agents, served by Ludus to every OpenEnv and MCP client "
        "on `/ws` and `/mcp`.",
        code_block(inspect.getdoc(env_spec.cls) or "", "text"),
        "## Run it",
        code_block(commands, "bash"),
        "As a Space it has a URL, which takes the place of `docker:…` in these commands.",
    ]
    return head + "\n" + "\n\n".join(parts) + "\n"


def push_space(context: Path, repo_id: str, *, private: bool, retry_command: str) -> str:
    """Upload a build context as one commit, and return the URL of the Space.

    Files of an older upload are deleted, others are kept.
    """
    files = sorted(
        path.relative_to(context).as_posix()
        for name in CONTEXT_NAMES
        for path in (context / name, *(context / name).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    )
    return push_folder(
        context,
        repo_id,
        SPACE,
        private=private,
        message="Build context of the environment",
        files=files,
        delete_if=lambda name: name.partition("/")[0] in CONTEXT_NAMES and name != CARD_FILE,
        card=(context / CARD_FILE).read_text(encoding="utf-8"),
        retry_command=retry_command,
    )


def space_server_url(repo_id: str) -> str:
    """The URL at which a Space serves its environment."""
    return f"https://{re.sub('[^a-z0-9]+', '-', repo_id.lower())}.hf.space"
