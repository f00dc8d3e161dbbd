"""Environments of OpenEnv whose `step` is annotated with the base `Action`, as they lie on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus import CollectConfig, ToolCall, collect, connect, episodes
from ludus.agents.scripted import ScriptedAgent
from ludus.check import run_checks
from ludus.environment.registry import find_environment
from ludus.rollout.progress import Notice, ProgressEvent

MODELS = """
from openenv.core.env_server.types import Action, Observation

class CodeAction(Action):
    '''Run code.'''
    code: str

class CodeObservation(Observation):
    stdout: str = ""
"""
OTHER_MODELS = """
class SetupAction(Action):
    packages: list[str]

class SetupObservation(Observation):
    log: str = ""
"""
ENVIRONMENT = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
{imports}

class CodeEnvironment(Environment):
    '''Run code.'''

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, reward: float = 1.0):
        super().__init__()
        self.reward = reward

    def reset(self) -> Observation:
        return {observation}(stdout="ready")

    def step(self, action: Action) -> Observation:
        return {observation}(stdout=f"ran {{action.code}}", reward=self.reward, done=True)

    @property
    def state(self) -> State:
        return State()
"""
IMPORTS_MODELS = "from ..models import CodeAction, CodeObservation, {more}"
APP = """
from openenv.core.env_server import create_app
from ..models import CodeAction, CodeObservation
from .environment import CodeEnvironment

app = create_app(lambda: CodeEnvironment(reward=0.5), CodeAction, CodeObservation, env_name="code")
"""


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """What a test imports is forgotten after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("code_env", "server", "models")):
            del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with `models.py`, and the environment in `server/`, which imports its models."""
    monkeypatch.chdir(tmp_path)
    server = tmp_path / "code_env" / "server"
    server.mkdir(parents=True)
    for folder in (server, server.parent):
        (folder / "__init__.py").write_text("")
    (server.parent / "models.py").write_text(MODELS)
    (server / "environment.py").write_text(
        ENVIRONMENT.format(
            imports="from ..models import CodeAction, CodeObservation",
            observation="CodeObservation",
        )
    )
    return server.parent


SPEC = "code_env.server.environment:CodeEnvironment"


def arguments_of(spec: str) -> set[str]:
    tools = find_environment(spec).tools
    assert tools is not None
    return set(tools[0].input_schema["properties"])


def import_only_the_observation(package: Path) -> None:
    (package / "server" / "environment.py").write_text(
        ENVIRONMENT.format(
            imports="from ..models import CodeObservation", observation="CodeObservation"
        )
    )


@pytest.mark.parametrize("signature", ["action: Action) -> Observation", "action)"])
async def test_the_action_that_the_module_imports_is_the_type_of_the_actions(
    package: Path, signature: str
) -> None:
    path = package / "server" / "environment.py"
    check = "        if not isinstance(action, CodeAction): raise TypeError(type(action))\n"
    annotated = "    def step(self, action: Action) -> Observation:\n"
    text = path.read_text().replace(annotated, f"    def step(self, {signature}:\n{check}")
    path.write_text(text)
    async with connect(SPEC).session() as session:
        (tool,) = session.tools
        assert (tool.name, tool.description) == ("code", "Run code.")
        await session.reset()
        result = await session.call("code", {"code": "1 + 1"})
        assert (result.content, result.reward, result.done) == ("stdout: ran 1 + 1", 1.0, True)


async def test_any_fields_are_accepted_where_no_type_is_found(
    package: Path, tmp_path: Path
) -> None:
    (package / "models.py").write_text(MODELS + OTHER_MODELS)
    imports = IMPORTS_MODELS.format(more="SetupAction")
    text = ENVIRONMENT.format(imports=imports, observation="CodeObservation")
    (package / "server" / "environment.py").write_text(text)
    assert "SetupAction" in (find_environment(SPEC).note or "")
    agent = ScriptedAgent(ToolCall(name="act", arguments={"code": "2 + 2"}))
    noted: list[str] = []

    def note(event: ProgressEvent) -> None:
        if isinstance(event, Notice):
            noted.append(event.message)

    config = CollectConfig(agent=agent, num_episodes=1)
    await collect(SPEC, tmp_path / "run", config, progress=note)
    (episode,) = episodes(tmp_path / "run/episodes.jsonl")
    assert (episode.reward, episode.messages[-1].text) == (1.0, "stdout: ran 2 + 2")
    assert noted == [find_environment(SPEC).note]


@pytest.mark.usefixtures("package")
async def test_its_observations_fit_the_schema_that_is_published() -> None:
    report = await run_checks(SPEC, seeds=2, sessions=2)
    verdicts = {finding.check: finding.verdict for finding in report.findings}
    assert verdicts["plays an episode"] == verdicts["observations fit the schema"] == "pass"


@pytest.mark.usefixtures("package")
async def test_an_app_of_theirs_is_a_spec(package: Path) -> None:
    (package / "server" / "app.py").write_text(APP)
    for spec in ("code_env.server.app:app", "code_env/server/app.py:app"):
        async with connect(spec).session() as session:
            await session.reset()
            result = await session.call("code", {"code": "1"})
            assert result.reward == 0.5


async def test_an_app_of_ours_is_a_spec(package: Path) -> None:
    ours = APP.replace("openenv.core.env_server", "ludus.serve")
    (package / "server" / "app.py").write_text(ours)
    async with connect("code_env.server.app:app").session() as session:
        await session.reset()
        assert (await session.call("code", {"code": "1"})).reward == 0.5


STEP_RESULT = """
from openenv.core.client_types import StepResult
"""


async def test_a_step_result_is_unpacked(package: Path) -> None:
    path = package / "server" / "environment.py"
    text = path.read_text().replace(
        'CodeObservation(stdout=f"ran {action.code}", reward=self.reward, done=True)',
        'StepResult(CodeObservation(stdout="ran"), reward=0.25, done=True, metadata={"n": 1})',
    )
    path.write_text(STEP_RESULT + text)
    async with connect(SPEC).session() as session:
        await session.reset()
        result = await session.call("code", {"code": "1"})
        assert (result.content, result.reward, result.done) == ("stdout: ran", 0.25, True)
        assert result.metadata == {"n": 1}
