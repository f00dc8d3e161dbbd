"""MiniWoB++ on a real browser, through BrowserGym (extra `browsergym`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.envs import lazy_environment
from ludus.protocol.types import Action, Observation, State

if TYPE_CHECKING:
    from ludus.envs.browsergym.environment import BrowserGym

__all__ = ["BrowserGym", "BrowserGymAction", "BrowserGymEnv", "BrowserGymObservation"]

__getattr__ = lazy_environment(
    __name__,
    "BrowserGym",
    extra="browsergym",
    libraries=("browsergym", "miniwob", "playwright", "psutil"),
)


class BrowserGymAction(Action):
    """Carry out one action, written as a call."""

    action_str: str = Field(description="The action, for example: fill('14', 'New York').")


class BrowserGymObservation(Observation):
    """The page, and what has become of the task."""

    goal: str = ""
    instruction: str = ""
    """What a player has to know; in the first observation only."""
    error: str = ""
    """Always empty, as OpenEnv sends it. `text` says why the last action was not carried out."""
    text: str = ""
    """The page as a model is shown it, how the episode has ended, or why an action failed."""
    url: str = ""
    screenshot: str | None = None
    """The page as PNG, in base64, if the task asks for it."""
    axtree_txt: str = ""
    """The accessibility tree of the page, in full and as BrowserGym writes it."""
    pruned_html: str = ""
    """Always empty."""
    last_action_error: bool = False
    actions_left: int | None = None


class BrowserGymEnv(EnvClient[BrowserGymAction, BrowserGymObservation, State]):
    """A typed client for a browsergym server."""
