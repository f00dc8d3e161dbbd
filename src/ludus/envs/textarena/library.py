"""The TextArena library: its games, how to build one, and where its random numbers come from.

TextArena draws from Python's global generator. Here its modules get a replacement for `random` that
draws from the generator of the episode whose call is running. Episodes in several threads then do
not disturb each other, nor the rest of the process.
"""

from __future__ import annotations

import ast
import importlib
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ludus.errors import did_you_mean

_HOSTED_REFEREE = frozenset({"GuessWho", "TwentyQuestions"})
"""Games in which a hosted language model answers the player."""
_REPEATED_SUFFIXES = ("-train", "-raw")
"""The same games with other wrappers around their observations, which are not used here."""
_NLTK_HINT = "python -m nltk.downloader words averaged_perceptron_tagger_eng"
_build_lock = threading.Lock()


class EpisodeRandom:
    """Replaces the module `random`; draws from the running episode's generator, if any."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def __getattr__(self, name: str) -> Any:
        if not hasattr(random.Random, name):
            return getattr(random, name)

        # The generator is looked up in each call, because some games keep the function.
        def draw(*args: Any, **options: Any) -> Any:
            rng = getattr(self._thread, "rng", None)
            return getattr(rng or random, name)(*args, **options)

        return draw

    @contextmanager
    def use(self, rng: random.Random) -> Iterator[None]:
        """Draw from `rng` within the block, in this thread."""
        self._thread.rng = rng
        try:
            yield
        finally:
            self._thread.rng = None


episode_random = EpisodeRandom()


@cache
def game_modules() -> Mapping[str, str]:
    """The names of the single-player games, with the modules they are in."""
    registration = _load_library()
    modules = {
        name: spec.entry_point.partition(":")[0]
        for name, spec in sorted(registration.ENV_REGISTRY.items())
        if not name.endswith(_REPEATED_SUFFIXES)
    }
    single = {module for module in set(modules.values()) if _is_single_player(module)}
    return {name: module for name, module in modules.items() if module in single}


def build_game(name: str) -> Any:
    """Build a game; raises `ValueError` where it is unknown or lacks something."""
    modules = game_modules()
    if name not in modules:
        hint = did_you_mean(name, modules, "See `ludus envs textarena`.")
        raise ValueError(f"TextArena has no single-player game {name!r}. {hint}")
    with _build_lock, _without_downloads():
        try:
            importlib.import_module(modules[name])
            _isolate_modules()
            # Constructors draw too, and all sessions must get the same game.
            with episode_random.use(random.Random(name)):
                return _load_library().make(name)
        except LookupError:
            raise ValueError(
                f"{name} needs word lists that NLTK does not come with. Run: {_NLTK_HINT}"
            ) from None


@cache
def _load_library() -> Any:
    with _without_downloads():
        importlib.import_module("textarena")
        word_lists: Any = importlib.import_module("textarena.envs.utils.word_lists")
        state: Any = importlib.import_module("textarena.state")
    state.SinglePlayerState.set_invalid_move = _accept_either_order(
        state.SinglePlayerState.set_invalid_move
    )
    # The dictionary takes seconds to build and is never changed: one is enough for all games.
    word_lists.EnglishDictionary = cache(word_lists.EnglishDictionary)
    return importlib.import_module("textarena.envs.registration")


def _accept_either_order(set_invalid_move: Callable[..., None]) -> Callable[..., None]:
    """Some games give the reward and the reason of an invalid move in the wrong order."""

    def set_invalid_move_in_order(state: Any, reason: Any = None, reward: Any = -1.0) -> None:
        if isinstance(reward, str):
            reason, reward = reward, reason
        set_invalid_move(state, reason=reason, reward=reward)

    return set_invalid_move_in_order


def _is_single_player(module: str) -> bool:
    """Whether a game is written for one player, without importing it.

    Importing some games downloads word lists.
    """
    folder = Path(sys.modules["textarena"].__path__[0]).parent
    source = folder.joinpath(*module.split(".")).with_suffix(".py")
    if source.parent.name in _HOSTED_REFEREE or not source.exists():
        return False
    text = source.read_text(encoding="utf-8")
    return "SinglePlayerState(" in text and _is_valid_python(text)


def _is_valid_python(text: str) -> bool:
    """Whether this version of Python can load a game; not all of them are valid in every one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError:
        return False
    return True


def _isolate_modules() -> None:
    """Give the modules of the library their own `random`, and a `print` that does nothing."""
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena."):
            vars(module)["print"] = _print_nothing
            if vars(module).get("random") is random:
                vars(module)["random"] = episode_random


def _print_nothing(*values: Any, **options: Any) -> None:
    """Some games print what they do, on the stdout of the process."""


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Keep games from downloading word lists when they are imported or built.

    Some do so every time, even if the lists are there, and print on stdout what they do.
    """
    import nltk

    download = nltk.download
    nltk.download = lambda *args, **kwargs: False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        nltk.download = download
