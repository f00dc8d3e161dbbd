"""`ludus envs`, `play`, `init` and `check`: find, try, create and test environments."""

from __future__ import annotations

import asyncio
import inspect
import keyword
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Annotated

from ludus.cli import common
from ludus.cli.display.console import console, escape_control_chars, print_table, print_text
from ludus.cli.flags import command, name_flags
from ludus.data.config import check_at_least
from ludus.data.episode import Episode
from ludus.environment.registry import find_environment, registered_environments
from ludus.errors import LudusError, ProviderRefuses
from ludus.options import Option, expand_path


@command
def envs_command(
    name: Annotated[str | None, Option(), "Environment to describe, such as wordle."] = None,
) -> None:
    """List the installed environments, or describe one.

    Examples: ludus envs; ludus envs wordle
    """
    if name is not None:
        environment = find_environment(name)
        print_text(f"{environment.id}\n", "bold")
        print_text(inspect.getdoc(environment.cls) or environment.description)
        variants = list(getattr(environment.cls, "variants", lambda: ())())
        if variants and environment.variant is None:
            print_text(f"\n{len(variants)} variants ({environment.name}:VARIANT)", "bold")
            console().print(", ".join(variants), markup=False)
        return
    rows = []
    for name, point in registered_environments().items():
        package = point.dist.name if point.dist else "?"
        try:
            environment = find_environment(name)
            tools = ", ".join(tool.name for tool in environment.tools or ())
            rows.append((name, tools, package, environment.description))
        except LudusError as error:
            rows.append((name, "", package, str(error)))
    print_table(("name", "tools", "package", "description"), rows)


@command
def play_command(
    spec: common.Spec,
    *,
    seed: Annotated[int | None, Option(default="random"), "Seed of the task."] = None,
    task: common.Task = MappingProxyType({}),
    token: common.Token = None,
    debug: common.Debug = False,
) -> None:
    """Play an episode yourself, with the tools that a model has.

    Type `help` for the tools, `quit` to leave. Example: ludus play wordle --seed 7
    """
    from ludus.agents.human import HumanAgent
    from ludus.client.endpoint import connect
    from ludus.data.messages import Message
    from ludus.rollout import Assignment, EpisodeLimits, run_episode

    check_at_least("seed", seed, 0)
    arguments = dict(task) if seed is None else {**task, "seed": seed}

    def show(message: Message) -> None:
        is_error = message.role == "tool" and message.text.startswith("Error:")
        style = "red" if is_error else ""
        console().print(escape_control_chars(message.text), markup=False, style=style)

    async def play_episode() -> Episode:
        async with connect(spec, token=token) as endpoint, endpoint.session() as session:
            return await run_episode(
                session,
                HumanAgent(show=show, say=lambda text: print_text(text, "cyan")),
                Assignment.of(spec, **arguments),
                limits=EpisodeLimits(max_turns=1_000_000),
                system_prompt=None,
            )

    with common.record_environment_errors(debug=debug):
        episode = asyncio.run(play_episode())
        if episode.error is not None and episode.error.kind != ProviderRefuses.__name__:
            raise LudusError(episode.error.message)
    if episode.error is not None:
        print_text("You left before the end.")
        return
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
    reward = "No reward" if episode.reward is None else f"Reward {episode.reward:g}"
    print_text(f"{reward}  ({parts})" if parts else reward, "bold")


@command
def init_command(
    name: Annotated[str, Option(), "Package name, such as find_number."],
    *,
    directory: Annotated[
        Path | None, Option(name="in", default="this folder", parse=expand_path), "Parent folder."
    ] = None,
) -> None:
    """Create an environment package with an entry point, a client, a test and OpenEnv's manifest.

    Example: ludus init find_number
    """
    from ludus.publish.build_context import MANIFEST_FILE, app_module, manifest

    module = name.replace("-", "_").lower()
    if not (module.isidentifier() and module.isascii()):
        raise LudusError(
            f"{name!r} cannot be the name of a package: use letters from a to z, digits and "
            "underscores, and begin with a letter."
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise LudusError(f"Python has something named {module!r} already: choose another name.")
    if module in registered_environments():
        raise LudusError(
            f"An environment named {module} is installed already: choose another name."
        )
    target = (directory or Path.cwd()) / module
    names = {
        "module": module,
        "class_name": "".join(part.title() for part in module.split("_")),
        "distribution": module.replace("_", "-"),
    }
    skeleton = files("ludus.cli") / "skeleton"
    layout = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"src/{module}/__init__.py": "package.py.txt",
        f"src/{module}/client.py": "client.py.txt",
        f"tests/test_{module}.py": "test.py.txt",
    }
    texts = {
        path: Template((skeleton / source).read_text()).substitute(names)
        for path, source in layout.items()
    }
    texts[MANIFEST_FILE] = manifest(module, description="An environment for Ludus and OpenEnv.")
    texts["server/app.py"] = app_module(f"{module}:{names['class_name']}")
    try:
        target.mkdir(parents=True)
        for path, text in texts.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    except FileExistsError as error:
        raise LudusError(f"{target} exists already. Choose another name, or remove it.") from error
    except OSError as error:
        raise LudusError(f"{target} cannot be written: {error.strerror or error}.") from error
    print_text(str(target), "bold")
    print_text(f"  pip install -e {target} pytest")
    print_text(f"  ludus check {module}")
    print_text(f"  python -m pytest {target}/tests")


_VERDICT_STYLES = {"pass": "green", "fail": "bold red", "skip": "dim"}


@command
def check_command(
    spec: common.Spec,
    *,
    seeds: Annotated[int, Option(), "Number of seeds to test."] = 5,
    sessions: Annotated[int, Option(), "Number of concurrent sessions."] = 2,
    token: common.Token = None,
    debug: common.Debug = False,
    as_json: common.JsonObject = False,
) -> None:
    """Test whether an environment works as Ludus and OpenEnv clients expect.

    Examples: ludus check wordle; ludus check my_env.py:Guess; ludus check http://localhost:8000;
    ludus check docker:echo-env:latest
    """
    from rich.text import Text

    from ludus.check import run_checks
    from ludus.cli.display.status import PhaseStatus, terminal_status
    from ludus.rollout.progress import PhaseProgress

    with common.record_environment_errors(debug=debug), terminal_status() as status:
        report = asyncio.run(
            run_checks(
                spec,
                seeds=seeds,
                sessions=sessions,
                token=token,
                on_check=lambda name: status.show(PhaseStatus(PhaseProgress(name))),
            )
        )
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        rows = []
        for finding in report.findings:
            mark = "FAIL" if finding.verdict == "fail" else finding.verdict
            advice = f"\n→ {finding.advice}" if finding.advice else ""
            style = _VERDICT_STYLES[finding.verdict]
            details = name_flags(finding.detail + advice)
            rows.append((finding.check, Text(mark, style=style), details))
        print_table(("check", "", "details"), rows)
        failed = len(report.failures)
        verdict = f"{failed} failed" if failed else "all passed"
        style = "bold red" if failed else "bold green"
        print_text(f"{report.spec}: {verdict} in {report.seconds:.1f} s", style)
    if not report.passed:
        raise SystemExit(1)
