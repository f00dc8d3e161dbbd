"""Routes that list the splits of an environment and their tasks."""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.serve.sessions import SessionRegistry

MAX_LISTED_TASKS = 1000
"""Maximum number of tasks in a listing; `num_tasks` has the total number."""
_SPLIT_TYPES = ("train", "validation", "test")


class SplitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    split: str


class TaskRequest(SplitRequest):
    index: int


class TaskRangeRequest(SplitRequest):
    start: int | None = None
    stop: int | None = None


def add_task_routes(app: FastAPI, sessions: SessionRegistry) -> None:
    env_spec = sessions.env_spec

    @app.get("/list_environments")
    async def list_environments() -> list[str]:
        """The name of the environment, in a list."""
        return [env_spec.id]

    @app.get("/{environment}/splits")
    async def splits(environment: str) -> list[dict[str, Any]]:
        """The splits of the tasks."""
        infos: list[dict[str, Any]] = []
        for split in await _call_environment(env_spec, environment, "list_splits"):
            if hasattr(split, "model_dump"):
                infos.append(dict(split.model_dump(mode="json")))
            elif isinstance(split, dict):
                infos.append(split)
            else:
                kind = split if split in _SPLIT_TYPES else "validation"
                infos.append({"name": str(split), "type": kind})
        return infos

    @app.post("/{environment}/tasks")
    async def tasks(environment: str, body: SplitRequest) -> dict[str, Any]:
        """The tasks of a split, up to 1000."""
        listed = await _task_range(env_spec, environment, body.split, 0, MAX_LISTED_TASKS)
        return {"tasks": listed, "env_name": env_spec.id}

    @app.post("/{environment}/num_tasks")
    async def num_tasks(environment: str, body: SplitRequest) -> dict[str, Any]:
        """The number of tasks of a split."""
        return {
            "num_tasks": await _call_environment(env_spec, environment, "num_tasks", body.split)
        }

    @app.post("/{environment}/task")
    async def task(environment: str, body: TaskRequest) -> dict[str, Any]:
        """One task of a split, by its position."""
        record = await _call_environment(env_spec, environment, "get_task", body.split, body.index)
        return {"task": to_jsonable_python(record)}

    @app.post("/{environment}/task_range")
    async def task_range(environment: str, body: TaskRangeRequest) -> dict[str, Any]:
        """The tasks of a split from `start` to `stop`."""
        return {
            "tasks": await _task_range(env_spec, environment, body.split, body.start, body.stop)
        }


async def _task_range(
    env_spec: EnvSpec, environment: str, split: str, start: int | None, stop: int | None
) -> list[Any]:
    if hasattr(env_spec.cls, "get_task_range"):
        tasks = await _call_environment(env_spec, environment, "get_task_range", split, start, stop)
        return list(to_jsonable_python(tasks))
    count = await _call_environment(env_spec, environment, "num_tasks", split)
    host = await _start_task_runner(env_spec, environment)
    try:
        wanted = range(count)[start:stop][:MAX_LISTED_TASKS]
        return [to_jsonable_python(await host.call_method("get_task", split, i)) for i in wanted]
    except NotImplementedError as error:
        raise HTTPException(501, str(error)) from None
    finally:
        await host.close()


async def _call_environment(
    env_spec: EnvSpec, environment: str, method: str, *arguments: Any
) -> Any:
    host = await _start_task_runner(env_spec, environment)
    try:
        value = await host.call_method(method, *arguments)
        return await value if inspect.isawaitable(value) else value
    except NotImplementedError as error:
        raise HTTPException(501, str(error)) from None
    except (IndexError, KeyError) as error:
        raise HTTPException(400, f"No such task: {error}") from None
    finally:
        await host.close()


async def _start_task_runner(env_spec: EnvSpec, environment: str) -> EnvironmentRunner:
    """Start the environment whose tasks a route lists; 404 where another one is named."""
    if environment.lower() not in (env_spec.id.lower(), env_spec.name.lower()):
        raise HTTPException(404, f"This server serves {env_spec.id!r}, not {environment!r}.")
    host = EnvironmentRunner(env_spec)
    await host.start()
    return host
