"""`ludus build`: write the build context of an environment's image, and build it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.program import command
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.publish.env_source import EnvSource

OutputDir = Annotated[
    Path | None,
    Option(
        "Output",
        name="output_dir",
        short="o",
        metavar="DIR",
        parse=expand_path,
        default="build/NAME",
    ),
    "Folder of the build context.",
]
BaseImage = Annotated[
    str | None,
    Option(metavar="IMAGE", default="python:VERSION-slim of this Python"),
    "Image to build on, such as python:3.11.9-slim@sha256:….",
]
SystemPackages = Annotated[
    list[str] | None,
    Option(name="apt", metavar="PACKAGE"),
    "Debian package to install; repeatable.",
]
PythonPackages = Annotated[
    list[str] | None,
    Option(name="pip", metavar="PACKAGE"),
    "Python package to install, in the version that is installed here; repeatable. Only "
    "for what the environment's own package does not require.",
]


@command
def build(
    spec: common.ServedSpec,
    *,
    out: OutputDir = None,
    tag: Annotated[str | None, Option(default="NAME-env:latest"), "Tag of the image."] = None,
    no_build: Annotated[bool, Option(), "Write the build context without building."] = False,
    base_image: BaseImage = None,
    system_packages: SystemPackages = None,
    python_packages: PythonPackages = None,
) -> None:
    """Write a Dockerfile, OpenEnv's manifest and the sources of an environment; build the image.

    The image is built with Docker or Podman, if one is installed. Example: ludus build wordle
    """
    from ludus.client.container import find_engine
    from ludus.errors import ContainerFailed
    from ludus.publish.build_context import image_tag

    source, folder = write_context(spec, out, base_image, system_packages, python_packages)
    tag = tag or image_tag(source)
    print(f"Build context: {folder}")
    try:
        engine = None if no_build else find_engine()
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


def write_context(
    spec: str,
    out: Path | None,
    base_image: str | None,
    system_packages: list[str] | None,
    python_packages: list[str] | None,
) -> tuple[EnvSource, Path]:
    """Write the build context, and return the environment and the folder."""
    from ludus.publish.build_context import write_build_context
    from ludus.publish.env_source import find_source

    source = find_source(spec, extra_requirements=python_packages or ())
    folder = out or Path("build", source.slug)
    write_build_context(
        source, folder, base_image=base_image, system_packages=system_packages or ()
    )
    return source, folder
