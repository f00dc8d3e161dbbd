"""The event loop that async tests run on, and one thread for each of those who test: each test
builds its own world."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# As many workers as there are cores: with several threads each, tiny models wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Hundreds of modules are loaded, and none of what they make is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def word_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A few words and a tagger for which every word is a noun, in the form of NLTK's data."""
    import nltk
    from nltk.corpus import words

    corpus, tagger = tmp_path / "corpora/words", tmp_path / "taggers/averaged_perceptron_tagger_eng"
    for folder in (corpus, tagger):
        folder.mkdir(parents=True)
    for name in ("en", "en-basic"):
        corpus.joinpath(name).write_text("crane\nslate\nhouse\nmouse\nplant\nbread\n")
    for part, content in {"weights": "{}", "tagdict": "{}", "classes": '["NN"]'}.items():
        tagger.joinpath(f"averaged_perceptron_tagger_eng.{part}.json").write_text(content)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    yield
    words._unload()
