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
from ludus.data.hub import HUB_ORIGIN, build_front_matter, code_block, to_single_line
from ludus.errors import ConfigError
from ludus.publish.env_source import EnvSource, looks_secret
from ludus.publish.hub_upload import SPACE, push_folder
from ludus.publish.openenv_files import (
    MANIFEST_FILE,
    SPACE_HOSTS,
    app_module,
    client_package,
    manifest,
)
from ludus.publish.run_card import CARD_FILE

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
    """The tag of the image by default, as OpenEnv names its own: `echo-env:latest`."""
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


def context_files(folder: Path) -> list[str]:
    """The files of a build context, by their paths in it."""
    return sorted(
        path.relative_to(folder).as_posix()
        for name in CONTEXT_NAMES
        for path in ((folder / name).rglob("*") if (folder / name).is_dir() else [folder / name])
        if path.is_file() and "__pycache__" not in path.parts
    )


def _open_context(out: Path) -> AbstractContextManager[Path]:
    """Return a draft folder whose files move to `out`, which could be the user's own package."""
    if existing_files(out, _DRAFT_PREFIX):
        dockerfile = out / DOCKERFILE
        if not (dockerfile.is_file() and dockerfile.read_text().startswith(_FIRST_LINE)):
            raise ConfigError(
                f"{out} has other files than those of `ludus build`. "
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
    """The Dockerfile: pinned packages, a user that is not root, a health check."""
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


def space_card(source: EnvSource) -> str:
    """The README.md, with the front matter of a Space that is built from a Dockerfile."""
    env_spec, tag = source.env_spec, image_tag(source)
    head = build_front_matter(
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
    return push_folder(
        context,
        repo_id,
        SPACE,
        private=private,
        message="Build context of the environment",
        files=context_files(context),
        delete_if=lambda name: name.partition("/")[0] in CONTEXT_NAMES and name != CARD_FILE,
        card=(context / CARD_FILE).read_text(encoding="utf-8"),
        retry_command=retry_command,
    )


def space_server_url(repo_id: str) -> str:
    """The URL at which a Space serves its environment."""
    return f"https://{re.sub('[^a-z0-9]+', '-', repo_id.lower())}.hf.space"
