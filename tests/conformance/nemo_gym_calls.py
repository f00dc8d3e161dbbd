"""Two turns with NeMo Gym's own model servers, in an environment that has `nemo-gym`.

Prints the responses as lines of JSON. Run by test_other_engines.py.
"""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Add numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}


def build_model() -> Any:
    from nemo_gym.server_utils import ServerClient
    from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig
    from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

    url, kind = os.environ["MODEL_URL"], os.environ["MODEL_SERVER"]
    address = {"host": "127.0.0.1", "port": 1, "name": "policy_model", "entrypoint": ""}
    client = MagicMock(spec=ServerClient)
    if kind == "openai_model":
        settings = {"openai_base_url": url, "openai_api_key": "none", "openai_model": "smollm2"}
        return SimpleModelServer(
            config=SimpleModelServerConfig(**address, **settings), server_client=client
        )
    config = VLLMModelConfig(
        **address,
        base_url=url,
        api_key="none",
        model="smollm2",
        return_token_id_information=kind == "vllm_model with token ids",
        is_responses_native=kind == "vllm_model with responses",
        uses_reasoning_parser=True,
    )
    return VLLMModel(config=config, server_client=client)


async def main() -> None:
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
    from nemo_gym.server_utils import SESSION_ID_KEY, get_global_aiohttp_client

    model = build_model()
    request: Any = SimpleNamespace(session={SESSION_ID_KEY: "one"})
    given: list[Any] = [
        {"role": "developer", "content": "You add numbers."},
        {"role": "user", "content": "What is 2 + 2?"},
    ]
    for question in ("Are you sure?", None):
        body = NeMoGymResponseCreateParamsNonStreaming(
            input=given, tools=[TOOL], max_output_tokens=12, temperature=0.7
        )
        response = await model._invoke_responses(request, body)
        print(response.model_dump_json())
        given += [item.model_dump() for item in response.output]
        given.append({"role": "user", "content": question})
    await get_global_aiohttp_client().close()


if __name__ == "__main__":
    asyncio.run(main())
