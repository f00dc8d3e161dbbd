"""`ludus build` and `ludus push`: environments as images and Spaces, and uploads to the Hub."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.common import resolve_run_path
from ludus.cli.flags import command
from ludus.cli.hub_uploads import push_data, push_trained_model
from ludus.errors import ConfigError, ContainerFailed
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.publish.env_source import EnvSource
    from ludus.publish.hub_upload import RepoKind


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The build context of an environment's image."""

    out: Annotated[
        Path | None,
        common.output_option("build/NAME", metavar="DIR"),
        "Folder of the build context.",
    ] = None
    base_image: Annotated[
        str | None,
        Option(metavar="IMAGE", default="python:VERSION-slim of this Python"),
        "Image to build on, such as python:3.11.9-slim@sha256:….",
    ] = None
    system_packages: Annotated[
        list[str] | None,
        Option(name="apt", metavar="PACKAGE"),
        "Debian package to install; repeatable.",
    ] = None
    python_packages: Annotated[
        list[str] | None,
        Option(name="pip", metavar="PACKAGE"),
        "Python package to install, in the version that is installed here; repeatable. Only "
        "for what the environment's own package does not require.",
    ] = None

    def write(self, spec: str) -> tuple[EnvSource, Path]:
        """Write the build context; returns the environment's source and the folder."""
        from ludus.publish.build_context import write_build_context
        from ludus.publish.env_source import find_source

        source = find_source(spec, extra_requirements=self.python_packages or ())
        folder = self.out or Path("build", source.slug)
        packages = self.system_packages or ()
        write_build_context(source, folder, base_image=self.base_image, system_packages=packages)
        return source, folder


@command
def build_command(
    spec: common.ServedSpec,
    *,
    context: BuildOptions,
    tag: Annotated[str | None, Option(default="NAME-env:latest"), "Tag of the image."] = None,
    no_build: Annotated[bool, Option(), "Write the build context without building."] = False,
) -> None:
    """Write a Dockerfile, OpenEnv's manifest and the sources of an environment; build the image.

    The image is built with Docker or Podman, if one is installed. Example: ludus build wordle
    """
    from ludus.client.container import find_container_engine
    from ludus.publish.build_context import image_tag

    source, folder = context.write(spec)
    tag = tag or image_tag(source)
    print(f"Build context: {folder}")
    try:
        engine = None if no_build else find_container_engine()
    except ContainerFailed as error:
        print(str(error), file=sys.stderr)
        engine = None
    if engine is None:
        print(f"Build it with: docker build --tag {tag} {folder}")
        return
    # The engine's output is progress: stdout has the result alone.
    command = [engine, "build", "--tag", tag, str(folder)]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno()).returncode
    if code:
        raise ContainerFailed(f"`{' '.join(command)}` failed with exit code {code}.")
    print(f"Image: {tag}")
    print(f"  ludus check docker:{tag}")


@command
def push_env_command(
    spec: common.ServedSpec,
    repo_id: Annotated[str, Option(metavar="USER/NAME"), "Space to upload to."],
    *,
    private: common.Private = False,
    context: BuildOptions,
) -> None:
    """Upload an environment as a Space, which builds its image and serves it.

    Example: ludus push env wordle ada/wordle
    """
    from ludus.publish.build_context import push_space, space_server_url
    from ludus.publish.hub_upload import SPACE

    _check_upload(repo_id, SPACE)
    _, folder = context.write(spec)
    url = push_space(folder, repo_id, private=private, retry_command=typed_command())
    print(f"Space: {url}")
    print(f"  ludus check {space_server_url(repo_id)}")


@command
def push_dataset_command(
    source: Annotated[
        str,
        Option(metavar="RUN_OR_DATA"),
        "Run of `ludus collect` (path, name or last), or data set of `ludus curate`.",
    ],
    repo_id: Annotated[str, Option(metavar="USER/NAME"), "Data set to upload to."],
    *,
    private: common.Private = False,
) -> None:
    """Upload a run or a curated data set, which `load_dataset` reads.

    Large files that have arrived are not sent again: after an interruption, the same command sends
    the rest.

    Examples: ludus push dataset runs/wordle ada/wordle-rollouts --private;
    ludus push dataset data/wordle ada/wordle-sft
    """
    from ludus.publish.hub_upload import DATASET

    _check_upload(repo_id, DATASET)
    folder = _check_folder(resolve_run_path(source))
    url = push_data(folder, repo_id, private=private, retry_command=typed_command())
    print(f"Data set: {url}")


@command
def push_model_command(
    model: Annotated[
        Path,
        Option(metavar="MODEL", parse=expand_path),
        "Folder of a trained model.",
    ],
    repo_id: Annotated[str, Option(metavar="USER/NAME"), "Model to upload to."],
    *,
    private: common.Private = False,
) -> None:
    """Upload a trained model with its card; checkpoints and episodes stay here.

    Large files that have arrived are not sent again: after an interruption, the same command sends
    the rest.

    Example: ludus push model models/wordle ada/wordle-player --private
    """
    from ludus.publish.hub_upload import MODEL, check_model_folder

    _check_upload(repo_id, MODEL)
    check_model_folder(_check_folder(model))
    url = push_trained_model(model, repo_id, private=private, retry_command=typed_command())
    print(f"Model: {url}")


def _check_upload(repo_id: str, kind: RepoKind) -> None:
    """Check the name and the login; the last step of checking options."""
    from ludus.publish.hub_upload import check_login, check_upload_target

    check_upload_target(repo_id, kind)
    check_login()
    end_if_checking()


def _check_folder(folder: Path) -> Path:

    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {problem}. Give a folder to upload.")
    return folder
