"""The stub server that other tests and benchmarks rely on."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chat_stub as module
import pytest
from chat_stub import chat_stub, sensible
from world import until

from agents.stub_agents import ANSWER, anthropic_agent, ask, openai_agent, user_message
from ludus.agents.agent import EpisodeContext
from ludus.data.tool_schema import JsonObject, ToolSpec


def stub_answer(question: str) -> int:
    request = {
        "messages": [{"role": "user", "content": question}],
        "tools": [ANSWER.to_openai()],
    }
    (call,) = sensible(request)["tool_calls"]
    arguments: JsonObject = json.loads(call["function"]["arguments"])
    return int(arguments["answer"])


def test_about_a_fifth_of_the_sums_are_wrong() -> None:
    sums = [(a, b) for a in range(30) for b in range(30)]
    wrong = sum(stub_answer(f"Problem: {a} + {b} - 7 =") != a + b - 7 for a, b in sums)
    assert 0.15 < wrong / len(sums) < 0.25


async def test_both_apis_give_the_same_call_for_the_same_question() -> None:
    with chat_stub() as stub:
        async with openai_agent(stub) as one, anthropic_agent(stub) as two:
            question = user_message("Problem: 12 - 5 + 91 =")
            calls = [(await ask(agent, question)).message.tool_calls for agent in (one, two)]
    first, second = ((call or ())[0].function for call in calls)
    assert first == second and first.arguments == '{"answer": "98"}'


async def test_other_tools_get_valid_arguments() -> None:
    guess = ToolSpec(name="guess", input_schema={"properties": {"word": {"type": "string"}}})
    schema = {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "minimum": 5, "maximum": 6},
            "kind": {"enum": ["a", "b"]},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            "list": {"type": "array", "items": {"type": "boolean"}},
        },
    }
    with chat_stub() as stub:
        async with openai_agent(stub) as agent:
            calls = []
            for tool in (guess, ToolSpec(name="move", input_schema=schema)):
                player = await agent.begin(EpisodeContext("here", (tool,)))
                calls.append((await player.act([user_message("Go.")])).message.tool_calls or ())
    word = json.loads(calls[0][0].function.arguments)["word"]
    move = json.loads(calls[1][0].function.arguments)
    assert len(word) == 5
    assert move["number"] in (5, 6) and move["kind"] in ("a", "b")
    assert move["maybe"] is None and isinstance(move["list"][0], bool)


async def test_faults_are_reproducible_from_the_seed() -> None:
    steps = []
    for seed in (1, 1, 2):
        stub = module.Stub(sensible, fail=0.5, seed=seed)
        steps.append([stub._step() for _ in range(400)])
    assert steps[0] == steps[1] != steps[2]
    counts = {step: steps[0].count(step) for step in set(steps[0])}
    assert 160 < counts.pop("reply") < 240
    assert set(counts) == set(module.FAULTS)


@contextmanager
def program(*arguments: str) -> Iterator[str]:
    """Run the stub as a program; yields its URL."""
    path = Path(module.__file__)
    command = [sys.executable, str(path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def test_as_a_program_it_prints_its_url_and_serves_there() -> None:
    with program("--latency", "0.01", "--key", "abcd") as url:
        request = urllib.request.Request(f"{url}/models", headers={"Authorization": "Bearer abcd"})
        response = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
        assert json.loads(response) == {"object": "list", "data": []}


@pytest.mark.parametrize("step", ["cut", "hang"])
async def test_a_stub_stops_while_a_client_waits(step: str) -> None:
    with chat_stub(script=[step]) as stub:
        agent = openai_agent(stub)
        waiting = asyncio.create_task(ask(agent))
        await until(lambda: stub.counts[step] >= 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await agent.close()
