"""The official MCP client against our server."""

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from world import serving


async def test_the_official_client_lists_and_calls_tools() -> None:
    with serving("catch") as served:
        async with (
            streamable_http_client(f"{served.url}/mcp") as (read, write, _),
            ClientSession(read, write) as client,
        ):
            greeting = await client.initialize()
            assert greeting.serverInfo.name == "catch"
            assert "Rows left to fall: 9" in (greeting.instructions or "")
            await client.send_ping()
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["move"]
            assert listed.tools[0].inputSchema["required"] == ["direction"]
            result = await client.call_tool("move", {"direction": "stay"})
            assert not result.isError
            assert "Rows left to fall: 8" in result.content[0].text  # type: ignore[union-attr]
            wrong = await client.call_tool("move", {"direction": "up"})
            assert wrong.isError
            again = await client.call_tool("move", {"direction": "left"})
            assert "Rows left to fall: 7" in again.content[0].text  # type: ignore[union-attr]
            assert len(served.sessions) == 1
        assert len(served.sessions) == 0
