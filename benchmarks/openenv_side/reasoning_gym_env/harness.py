"""Sessions for OpenEnv's collector: one question, one tool, one answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import StepEnvSessionAdapter

ANSWER = Tool(
    name="answer",
    description="Submit the final answer to the question.",
    input_schema={
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "The final answer."}},
        "required": ["answer"],
    },
)


class ReasoningGymSessionFactory:
    def __init__(
        self,
        client: Callable[[], Any],
        *,
        dataset_name: str,
        dataset_config: dict[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._task = {
            "dataset_name": dataset_name,
            "dataset_config": dataset_config or {},
            "size": 1,
        }

    def create(
        self, task: Any = None, seed: int | None = None, episode_id: str | None = None
    ) -> Any:
        return StepEnvSessionAdapter(
            client=self._client(),
            task=task,
            seed=random.getrandbits(31) if seed is None else seed,
            episode_id=episode_id,
            tool_specs=[ANSWER],
            action_builder=lambda name, arguments: {"answer": str(arguments["answer"])},
            initial_messages_builder=lambda result, _: [
                {"role": "user", "content": result.observation["question"]}
            ],
            reset_kwargs=self._task,
        )
