"""Folders that OpenEnv's own harness writes for a made-up game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import HarnessRunLimits, MCPHarnessAdapter, ModelStepResult
from openenv.core.harness.collect import CollectRunner, RolloutSerializer
from openenv.core.harness.rollout import ToolResult, VerifyResult
from openenv.core.llm_client import LLMResponse, ToolCall

METADATA = {
    "env": "guess:small",
    "env_base_url": "http://localhost:8000",
    "provider": "openai",
    "model": "gpt-5-mini",
    "llm_endpoint": None,
    "llm_port": None,
    "num_episodes_requested": 2,
    "temperature": 0.2,
    "keep_losses": True,
}


class Guess:
    """Guess a number; the third guess is right."""

    def __init__(self, task: Any) -> None:
        self._task, self._guesses = task, 0

    def initial_messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": f"Guess. ({self._task})"}]

    def list_tools(self) -> list[Any]:
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        return [Tool(name="guess", description="Guess.", input_schema=schema)]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self._guesses += 1
        right = self._guesses == 3
        return ToolResult(
            data={"right": right}, done=right, metadata={"reward": 1.0 if right else 0.25}
        )

    def verify(self, transcript: Any, final_state: Any = None) -> Any:
        metrics = {"step_count": self._guesses, "final_reward": 1.0, "solved": True, "note": "x"}
        return VerifyResult(metrics=metrics, artifacts={"answer": 7})

    def close(self) -> None:
        pass


class _Games:
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Guess:
        return Guess(task)


def _guesses(messages: list[Any], tools: list[Any], sampling: dict[str, Any]) -> Any:
    calls = [ToolCall(id=f"c{len(messages)}", name="guess", args={"number": len(messages)})]
    return ModelStepResult(response=LLMResponse(content="Let me see.", tool_calls=calls))


def collect_with_openenv(folder: Path, tasks: list[Any], *, max_turns: int = 5) -> Path:
    """Collect one episode per task with OpenEnv."""
    serializer = RolloutSerializer(folder)
    serializer.write_metadata(METADATA)
    CollectRunner(
        session_factory=_Games(),
        harness_adapter=MCPHarnessAdapter(),
        serializer=serializer,
        tasks=tasks,
        limits=HarnessRunLimits(max_turns=max_turns),
    ).run(model_step=_guesses, num_episodes=len(tasks))
    return folder
