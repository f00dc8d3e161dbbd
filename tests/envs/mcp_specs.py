"""Specs and sessions of the small MCP server in `mcp_server.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ludus import connect
from ludus.client.session import Session

SERVER = f"{sys.executable} -S {Path(__file__).with_name('mcp_server.py')}"
TASKS = [
    {"prompt": "What is 17 * 23 + 4?", "expected": 395},
    {"prompt": "What is 2 ** 20?", "expected": 1048576},
]


def spec_of(folder: Path, tasks: Any = TASKS, *, command: str = SERVER, **settings: Any) -> str:
    """A spec with a task file in this folder; `settings` are other fields of the file."""
    file = folder / "tasks.json"
    file.write_text(json.dumps({"tasks": tasks, **settings}))
    return f"mcp:{command}#{file}"


@asynccontextmanager
async def session_of(spec: str) -> AsyncIterator[Session]:
    async with connect(spec).session() as session:
        await session.reset(seed=0)
        yield session
