"""The tools of an MCP server as an environment: connections, calls and the end of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ludus.data.messages import content_text
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.base import Environment
from ludus.envs.mcp.tasks import (
    Attempt,
    Check,
    Expected,
    PastCall,
    ServerConfig,
    Task,
    TaskFile,
    build_mcp_server,
    load_check,
    load_task_file,
    score_attempt,
)
from ludus.errors import BadEnvironment, ConnectFailed, ExecutionFailed, InvalidAction, did_you_mean
from ludus.protocol.types import CallToolAction, CallToolObservation, State, ToolFault

if TYPE_CHECKING:
    from ludus.envs.mcp.connection import McpConnection, ToolResult

SUBMIT_NAMES = ("submit", "submit_answer")
"""Names of the tool that ends an episode: the first one that the server does not use."""


class Mcp(Environment[CallToolAction, CallToolObservation, State]):
    """Solve tasks with the tools of an MCP server, which a command starts: mcp:COMMAND#TASKS.

    Tools:
        The server's tools, unchanged.
        submit(answer): ends the episode; `submit_answer` if the server has a `submit`.
    Observation:
        The prompt of the task and the server's instructions; then the results of the calls, text
        and images. An error that a tool reports is shown as an error, and the episode goes on.
    Reward:
        Of the submitted answer: 1.0 or 0.0 for an expected value, else what the task's check
        returns. A server that ends or hangs breaks the episode, which then has no reward.
    Episode end:
        The answer is submitted.
    Task arguments:
        seed: selects task `seed % len(tasks)` of the task file.
        index: selects a task of the file by its position instead, from 0.
        prompt: a task that is not in the file, with `expected`.
        expected: its right answer, or a list of right answers.
    """

    any_variant = True
    _url_scheme: ClassVar[str | None] = None

    def __init__(self, *, variant: str = "") -> None:
        target, _, file = variant.rpartition("#") if "#" in variant else (variant, "", "")
        if self._url_scheme is not None:
            target = f"{self._url_scheme}:{target}"
        self._folder = Path(file).parent.absolute()
        self._file: TaskFile | None = load_task_file(Path(file).expanduser()) if file else None
        self._server = build_mcp_server(target, self._file.server if self._file else ServerConfig())
        self._connection: McpConnection | None = None
        self._is_used = False
        """Whether an episode was played on the connection."""
        self._task: Task
        self._check: Check | None = None
        self._calls: list[PastCall] = []

    async def list_tools(self) -> Sequence[ToolSpec]:
        connection = await self._connect()
        return (*connection.tools, _submit_tool(connection.tools))

    async def reset(
        self,
        *,
        seed: int | None = None,
        index: int | None = None,
        prompt: str | None = None,
        expected: Expected | None = None,
    ) -> str:
        if prompt is not None and expected is not None:
            self._task = Task(prompt=prompt, expected=expected)
        elif prompt is not None or expected is not None:
            raise InvalidAction("A task needs both `prompt` and `expected`.")
        elif self._file is None:
            raise InvalidAction(
                "There is no task. Name a task file after the server, as in "
                "mcp:COMMAND#tasks.jsonl, or give `prompt` and `expected`."
            )
        else:
            count = len(self._file.tasks)
            if index is not None and not 0 <= index < count:
                raise InvalidAction(f"`index` must lie between 0 and {count - 1}, got {index}.")
            self._task = self._file.tasks[(seed or 0) % count if index is None else index]
        self._check = load_check(self._task.check, self._folder) if self._task.check else None
        if self._is_used and self._server.config.restart:
            await self.close()
        connection = await self._connect()
        self._is_used = True
        self._calls = []
        submit = _submit_tool(connection.tools).name
        instruction = f"Use the tools, then call {submit} with your answer: it is scored, once."
        return "\n\n".join(
            part for part in (self._task.prompt, connection.instructions, instruction) if part
        )

    async def step(self, action: CallToolAction) -> CallToolObservation:
        connection = self._require_connection()
        name = action.tool_name
        if name == _submit_tool(connection.tools).name:
            return await self._submit(action)
        names = [tool.name for tool in connection.tools]
        if name not in names:
            hint = did_you_mean(name, names, f"There are: {', '.join(names)}.")
            fault = ToolFault(
                error_type="tool_not_found", message=f"No tool is named {name!r}. {hint}"
            )
            return CallToolObservation(tool_name=name, error=fault)
        result = await self._call(name, action.arguments)
        text = content_text(result.blocks)
        self._calls.append(PastCall(name, action.arguments, text, result.is_error))
        if result.is_error:
            fault = ToolFault(error_type="execution_error", message=text)
            return CallToolObservation(tool_name=name, error=fault)
        content = [block.model_dump(mode="json", by_alias=True) for block in result.blocks]
        return CallToolObservation(tool_name=name, result={"content": content})

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._is_used = False
        if connection is not None:
            await connection.close()

    def list_splits(self) -> Sequence[str]:
        return ("train",) if self._file is not None else ()

    def num_tasks(self, split: str) -> int:
        return {"train": len(self._file.tasks) if self._file is not None else 0}[split]

    def get_task(self, split: str, index: int) -> JsonObject:
        count = self.num_tasks(split)
        if not 0 <= index < count:
            raise IndexError(f"Split {split!r} has tasks 0 to {count - 1}, got {index}.")
        return {"index": index}

    async def _connect(self) -> McpConnection:
        # Here, because the client library takes a second to import.
        from ludus.envs.mcp.connection import McpConnection

        if self._connection is None:
            try:
                self._connection = await McpConnection.open(self._server)
            except ConnectFailed as error:
                # With this cause, `ludus check` does not add advice about the environment's code.
                raise ExecutionFailed(str(error)) from error
        return self._connection

    def _require_connection(self) -> McpConnection:
        """The connection of this episode: another server would not have its state."""
        if self._connection is None:
            raise ExecutionFailed("The MCP server of this episode is gone. Reset to start another.")
        return self._connection

    async def _call(self, name: str, arguments: JsonObject) -> ToolResult:
        connection = self._require_connection()
        try:
            return await connection.call(name, arguments)
        except BaseException:
            # Its state is unknown: the next episode gets another server.
            await self.close()
            raise

    async def _submit(self, action: CallToolAction) -> CallToolObservation:
        answer = action.arguments.get("answer")
        if not isinstance(answer, str):
            fault = ToolFault(error_type="invalid_args", message="`answer` must be a string.")
            return CallToolObservation(tool_name=action.tool_name, error=fault)

        async def call(name: str, **arguments: object) -> str:
            return content_text((await self._call(name, arguments)).blocks)

        attempt = Attempt(answer, self._task, call, tuple(self._calls))
        reward = await score_attempt(attempt, self._check)
        return CallToolObservation(
            tool_name=action.tool_name, result=f"Score: {reward:g}.", reward=reward, done=True
        )


class McpHttp(Mcp):
    """Solve tasks with the tools of an MCP server at a URL: mcp+http://HOST/PATH#TASKS.

    As `mcp`, over streamable HTTP; every episode has a new MCP session.
    """

    _url_scheme = "http"


class McpHttps(Mcp):
    """Solve tasks with the tools of an MCP server at a URL: mcp+https://HOST/PATH#TASKS.

    As `mcp`, over streamable HTTP; every episode has a new MCP session.
    """

    _url_scheme = "https"


def _submit_tool(tools: Sequence[ToolSpec]) -> ToolSpec:
    server_names = {tool.name for tool in tools}
    name = next((name for name in SUBMIT_NAMES if name not in server_names), None)
    if name is None:
        raise BadEnvironment(f"The MCP server uses all of the names {', '.join(SUBMIT_NAMES)}.")
    return ToolSpec(
        name=name,
        description="Submit the answer to the task. It is scored, and the episode ends.",
        input_schema={
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer alone."}},
            "required": ["answer"],
            "additionalProperties": False,
        },
    )
