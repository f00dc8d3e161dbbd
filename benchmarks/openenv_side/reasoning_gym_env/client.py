"""The client: OpenEnv's generic one."""

from openenv.core.generic_client import GenericEnvClient as ReasoningGymEnv

__all__ = ["ReasoningGymEnv"]
