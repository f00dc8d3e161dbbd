"""TextArena and OpenSpiel as OpenEnv's repository serves them: on its bases, with the libraries'
own games underneath, and with its observations and rewards; and clients for them."""

from __future__ import annotations

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from conformance.observation_environments import (
    OpenSpielAction,
    OpenSpielObservation,
    TextArenaAction,
    TextArenaMessage,
    TextArenaObservation,
)


class TextArenaEnvironment(Environment[TextArenaAction, TextArenaObservation, State]):
    """The library's wrapper for models turns all that was said into one text."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str) -> None:
        import textarena

        super().__init__()
        self._env_id = env_id
        self._game = textarena.make(env_id)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> TextArenaObservation:
        wrapper = self._game
        while hasattr(wrapper, "env"):
            if hasattr(wrapper, "full_observations"):
                wrapper.full_observations = {}
            wrapper = wrapper.env
        self._game.reset(num_players=1, seed=seed)
        return self._observe(done=False)

    def step(
        self, action: TextArenaAction, timeout_s: float | None = None, **kwargs: Any
    ) -> TextArenaObservation:
        done, _ = self._game.step(action.message)
        return self._observe(done=done)

    def _observe(self, *, done: bool) -> TextArenaObservation:
        player, text = self._game.get_observation()
        state = self._game.state
        return TextArenaObservation(
            prompt=text.strip() if state.turn == 0 else self._env_id,
            messages=[TextArenaMessage(sender_id=-1, content=text, category="MESSAGE")],
            current_player_id=player,
            legal_players=sorted(each for each in state.role_mapping if each >= 0),
            info=dict(state.step_info),
            done=done,
            reward=float((state.rewards or {}).get(player, 0.0)),
            metadata={"env_id": self._env_id, "turn": state.turn},
        )

    @property
    def state(self) -> State:
        return State()


class OpenSpielEnvironment(Environment[OpenSpielAction, OpenSpielObservation, State]):
    """A game of one player. The game's chance outcomes do not depend on the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, game_name: str = "catch") -> None:
        from open_spiel.python import rl_environment

        super().__init__()
        self._game = rl_environment.Environment(game_name)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> OpenSpielObservation:
        return self._observe(self._game.reset())

    def step(
        self, action: OpenSpielAction, timeout_s: float | None = None, **kwargs: Any
    ) -> OpenSpielObservation:
        return self._observe(self._game.step([action.action_id]))

    def _observe(self, time_step: Any) -> OpenSpielObservation:
        phase = "terminal" if time_step.last() else "initial" if time_step.first() else "playing"
        return OpenSpielObservation(
            info_state=list(time_step.observations["info_state"][0]),
            legal_actions=time_step.observations["legal_actions"][0],
            game_phase=phase,
            current_player_id=time_step.observations["current_player"],
            done=time_step.last(),
            reward=None if time_step.rewards is None else float(time_step.rewards[0]),
        )

    @property
    def state(self) -> State:
        return State()


def their_client(observation: type) -> type:
    """A client on OpenEnv's base for observations of a type."""

    class Client(EnvClient[Any, Any, Any]):
        def _step_payload(self, action: Any) -> dict[str, Any]:
            payload: dict[str, Any] = action.model_dump(exclude={"metadata"})
            return payload

        def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
            outer = {"reward": payload.get("reward"), "done": payload.get("done", False)}
            return StepResult(observation=observation(**payload["observation"], **outer), **outer)

        def _parse_state(self, payload: dict[str, Any]) -> Any:
            return payload

    return Client
