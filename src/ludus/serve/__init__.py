"""An environment on the OpenEnv wire: FastAPI app, sessions, MCP."""
