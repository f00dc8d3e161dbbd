"""Environment classes for TRL: tools, rewards, faults and sessions."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
from typing import Any

import pytest
from transformers.utils import get_json_schema
from world import serving, wait_until

from ludus import connect
from ludus.agents.oracle import OracleAgent
from ludus.environment.mixture import mix
from ludus.environment.registry import find_environment
from ludus.errors import AgentError, ConfigError, ExecutionFailed, InvalidAction, SessionLost
from ludus.rollout import SYSTEM_PROMPT, Assignment, run_episode
from ludus.rollout.episode_loop import NOT_RUN_MESSAGE
from ludus.rollout.plan import Plan
from ludus.train import environment_factory
from ludus.train.trl_compat import tasks
from ludus.train.trl_compat.environment_factory import tool_schemas

COUNTER, FRAGILE, CAMERA = (
    "world:Counter",
    "train.trl_compat.environments:Fragile",
    "train.trl_compat.environments:ColorImage",
)


def without_additional_properties(schema: Any) -> Any:
    """Remove what type hints cannot express."""
    if isinstance(schema, dict):
        return {
            name: without_additional_properties(of)
            for name, of in schema.items()
            if name != "additionalProperties"
        }
    return (
        [without_additional_properties(of) for of in schema] if isinstance(schema, list) else schema
    )


@pytest.mark.parametrize("spec", ["wordle", "catch", "echo", "reasoning_gym", "world:Two"])
async def test_trl_reads_the_same_tools_as_collect(spec: str) -> None:
    kind = environment_factory(spec)
    async with connect(spec).session() as session:
        offered = [tool.to_openai() for tool in session.tools]
    assert tool_schemas(kind) == offered
    names = [tool["function"]["name"] for tool in offered]
    rendered = [
        without_additional_properties(get_json_schema(getattr(kind(), name))) for name in names
    ]
    for tool in offered:
        for argument in tool["function"]["parameters"]["properties"].values():
            argument.pop("default", None)
    assert rendered == without_additional_properties(offered)


@pytest.mark.parametrize("spec", ["catch", "echo"])
def test_only_tools_reset_and_get_reward_are_public(spec: str) -> None:
    kind = environment_factory(spec)
    public = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]
    tools = [tool["function"]["name"] for tool in tool_schemas(kind)]
    assert sorted(public) == sorted([*tools, "reset", "get_reward"])


async def test_episode_equals_that_of_the_loop() -> None:
    async with connect("catch").session() as session:
        episode = await run_episode(session, OracleAgent(), Assignment.of("catch", seed=5, rows=4))
    kind = environment_factory("catch", task={"rows": 4})
    env = kind()
    shown = [env.reset(prompt=[{"role": "user"}], seed=5, unknown="x", columns=None)]
    for message in episode.messages:
        for each in message.tool_calls or ():
            shown.append(env.move(direction=each.function.arguments.split('"')[3]))
    assert shown == [each.content for each in episode.messages if each.role in ("user", "tool")]
    assert env.get_reward() == episode.reward == 1.0
    assert env.move(direction="left") == NOT_RUN_MESSAGE
    assert env.get_reward() == 1.0


def test_rows_may_have_reset_arguments_and_must_have_a_seed() -> None:
    env = environment_factory(COUNTER)()
    assert env.reset(seed=1, goal=7) == "Reach 7."
    assert env.reset(seed=1, goal=None) != "Reach 7."
    with pytest.raises(ConfigError, match=r"no seed.*allow_unseeded"):
        env.reset(goal=7)
    unseeded = environment_factory(COUNTER, allow_unseeded=True)()
    with pytest.warns(UserWarning, match="no seed"):
        assert unseeded.reset(goal=7) == "Reach 7."


def test_invalid_call_gets_an_error_reply() -> None:
    env = environment_factory(COUNTER)()
    env.reset(seed=1, goal=3)
    assert env.add(number=0) == "Error: Only numbers above zero can be added."
    assert "Error" in env.add(numbr=3) and "Error" in env.add()
    assert env.get_reward() == 0.0
    assert env.add(number="3") == "Total 3."
    assert env.get_reward() == 1.0


def test_fault_is_reported_and_unscored() -> None:
    env = environment_factory(FRAGILE)()
    env.reset(seed=1)
    told = env.push(hard=True)
    assert "not scored" in told and "It fell over." in told
    assert env.get_reward() is None
    assert env.push() == NOT_RUN_MESSAGE
    env.reset(seed=2)
    assert (env.push(), env.get_reward()) == ("It moved.", 1.0)
    assert "No luck." in env.reset(seed=13) and env.get_reward() is None


def test_first_failing_reset_raises() -> None:
    with pytest.raises(InvalidAction, match="colums"):
        environment_factory("catch", task={"colums": 3})().reset(seed=1)
    with pytest.raises(ExecutionFailed, match="No luck"):
        environment_factory(FRAGILE)().reset(seed=13)


@pytest.mark.slow
def test_lost_server_breaks_one_episode() -> None:
    with serving("catch") as served:
        port = int(served.url.rpartition(":")[2])
        kind = environment_factory("catch", base_url=served.url, reconnect_timeout=5.0)
        env = kind()
        first = env.reset(seed=3, rows=4)
    told = env.move(direction="left")
    assert "not scored" in told and env.get_reward() is None
    with serving("catch", port=port):
        assert env.reset(seed=3, rows=4) == first
        assert env.get_reward() == 0.0
    env._session.reconnect_timeout = 0.0
    with pytest.raises(SessionLost, match="Cannot connect"):
        env.reset(seed=3)


def test_session_is_closed_when_collected() -> None:
    with serving("catch") as served:
        kind = environment_factory(served.url)
        assert kind.__name__ == "catch"
        wait_until(lambda: len(served.sessions) == 0)
        envs = [kind() for _ in range(3)]
        for env in envs:
            env.reset(seed=1)
        assert len(served.sessions) == 3
        del env, envs
        gc.collect()
        wait_until(lambda: len(served.sessions) == 0)


def test_process_exits_quietly_with_open_sessions() -> None:
    code = (
        "import sys; from ludus.train import environment_factory\n"
        "env = environment_factory('catch')(); env.reset(seed=1); print(env.get_reward())\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.0\n", "")


def test_images_become_content_parts() -> None:
    env = environment_factory(CAMERA)()
    text, image = env.reset(seed=1)
    assert text == {"type": "text", "text": "Which color?"}
    assert (image["type"], image["image"].getpixel((0, 0))) == ("image", (255, 0, 0))
    assert [part["type"] for part in env.name(color="red")] == ["text", "image"]
    assert env.get_reward() == 1.0


def test_images_are_a_fault_for_text_models() -> None:
    kind = environment_factory(CAMERA)
    env = kind()
    env.reset(seed=1)
    kind._accepts_images = False
    assert "reads only text" in env.name(color="red") and env.get_reward() is None
    with pytest.raises(AgentError, match="reads only text"):
        env.reset(seed=1)


def test_task_rows_equal_the_plan_of_collect() -> None:
    both = mix({"wordle": 0.7, "catch": 0.3})
    kinds = environment_factory(both)
    assert set(kinds) == {"wordle", "catch"}
    rows = tasks(both, 20, seed=4)
    plan = Plan("run", both, seed=4)
    assert rows["seed"] == [plan[number].seed for number in range(20)]
    assert rows["environment"] == [plan[number].environment for number in range(20)]
    assert len(set(rows["seed"])) == 20
    system, user = rows[0]["prompt"]
    assert (system["content"], user["content"]) == (SYSTEM_PROMPT, "")
    assert tasks("catch", 1, system_prompt=None)[0]["prompt"] == [user]
    with pytest.raises(ConfigError, match="`count`"):
        tasks("catch", 0)


def test_variant_plays_itself() -> None:
    kind = environment_factory("reasoning_gym:leg_counting")
    assert "legs" in kind().reset(seed=1)
    assert find_environment("reasoning_gym:leg_counting").id == kind.__name__
