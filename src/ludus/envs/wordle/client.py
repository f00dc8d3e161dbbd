"""A typed client for a wordle server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.wordle.models import WordleAction, WordleObservation
from ludus.protocol.types import State


class WordleEnv(EnvClient[WordleAction, WordleObservation, State]):
    """A typed client for a wordle server.

    with WordleEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7).observation.text)
        result = client.step(WordleAction(word="crane"))
    """
