"""Every command of README and docs, typed in order and in one folder, at small sizes; none fails.

What stands outside is stood in for: a paid API and the Hub by servers on loopback, models by tiny
ones under the same names, and files that a reader is said to have by small ones.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from chat_stub import chat_stub
from ludus_process import run_ludus, served_by_program
from policy.models import saved
from policy.vision.tiny_vlms import saved as saved_seeing
from publish.fake_hub import TOKEN, fake_hub
from tiny_tokenizers import of_family
from typer.testing import CliRunner
from world import serving

from ludus.cli.main import app
from ludus.policy import smollm2

ROOT = Path(__file__).parents[2]
GUIDES = (
    *("collecting", "curating", "training", "tutor", "thinking", "grpo", "diagnosing"),
    *("evaluating", "reports"),
)
MORE = (
    *("shipped", "rewards", "containers", "environments", "serving", "python"),
    *("scale", "architecture", "glossary", "benchmarks"),
)
PAGES = ["README.md", *(f"docs/{name}.md" for name in (*GUIDES, *MORE))]
"""In the order of the loop: a page may use what the pages before it have made."""
LONG_PAGES = {
    f"docs/{name}.md"
    for name in ("training", "tutor", "thinking", "grpo", "diagnosing", "shipped", "rewards")
}
"""Pages on which models are trained, or many environments played; `make test-slow` types these."""
SKIPPED = {
    "git clone": "the tests run in a clone",
    "pip install": "the tests run in an environment that make has set up",
    "pip download": "fetches a model",
    "python -m nltk": "fetches word lists",
    "apt install": "the tests run on what make has installed",
    "ludus collect browsergym": "tests/envs/test_browsergym.py plays on a browser",
    "ludus play browsergym": "tests/envs/test_browsergym.py plays on a browser",
    "ludus serve browsergym": "tests/envs/test_browsergym.py serves a browser",
    "ludus check 'mcp:": "tests/envs/test_mcp.py checks a server, which takes long",
    "ludus rescore runs/wordle-random --judge": "tests/scoring has judges",
    "ludus check docker:": "tests/client has a stand-in for the container engine",
    "ludus play docker:": "tests/client has a stand-in for the container engine",
    "ludus collect docker:": "tests/client has a stand-in for the container engine",
    "ludus train grpo docker:": "tests/client has a stand-in for the container engine",
    "ray start": "tests/rollout/test_ray.py starts a cluster",
    "ludus collect wordle --ray": "tests/rollout/test_ray.py starts a cluster",
    "ludus eval wordle --ray": "tests/rollout/test_ray.py starts a cluster",
    "ludus rescore runs/wordle --ray": "tests/rollout/test_ray.py starts a cluster",
    "ludus build wordle": "builds an image",
    "ludus build browsergym": "builds an image",
    "ludus build my_env.py:Guess": "builds an image",
    "make": "runs the tests themselves, or what takes minutes",
    "python benchmarks/": "takes minutes, or a GPU",
    "python -m llama_cpp.server": "needs another engine",
    "accelerate launch": "tests/train/test_processes.py trains in several processes",
}
"""What is not typed, by how it begins, and why."""


def python_block(page: str, start: str) -> str:
    """The Python on a page that begins with this line."""
    blocks: list[str] = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )
    return next(block for block in blocks if block.startswith(start))


FILES = {
    "rewards.py": python_block("docs/rewards.md", "# rewards.py"),
    "tasks.jsonl": '{"prompt": "What is 17 * 23 + 4?", "expected": 395}\n'
    '{"prompt": "What is 2 ** 20?", "expected": 1048576}\n',
    "my_package.py": "from policy.vision.image_env import Gallery\n",
    "my_env.py": "from world import Counter as Guess\n",
}
"""What the pages say that a reader has written."""
LINE = re.compile(rf"(ludus|duckdb|{'|'.join(map(re.escape, SKIPPED))})\b")


def commands_of(page: str) -> list[str]:
    """The commands in the indented blocks of a page, without comments and line breaks."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    block = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    lines = (re.sub(r"\s+#\s.*", "", line) for line in block.replace("\\\n", " ").splitlines())
    return [" ".join(line.split()) for line in lines if LINE.match(line)]


def smaller(words: list[str]) -> list[str]:
    """The same command with little to do; of an option that is given twice the last counts."""
    more: list[str] = []
    if words[:2] == ["train", "grpo"]:
        more = shlex.split("--steps 1 --groups 2 --group-size 2 --max-episode-tokens 16")
        more += ["--max-turns", "2"]
        more += ["--eval-every", "1" if "--eval-every" in words else "0"]
        more += ["--eval-episodes", "2"] if "--eval-every" in words else []
    elif words[0] == "train":
        more = ["--steps", "2", "--batch-size", "2"]
        if words[1] == "tutor":
            more += shlex.split("--rounds 2 --episodes 4 --eval-episodes 2")
            more += ["--max-tokens", "8", "--max-turns", "2"]
    elif words[0] in ("collect", "eval") and "--tasks" not in words:
        more = ["-n", "20" if words[0] == "collect" else "4"]
    if words[0] == "eval" or "hf" in words:
        more += ["--max-tokens", "8", "--max-turns", "2"]
    return [*words, *more]


@dataclass
class Reader:
    """Somebody who types what the pages say."""

    folder: Path
    env: dict[str, str]
    outside: dict[str, str]
    """Addresses on the pages, and what stands in for them."""
    stack: ExitStack
    typed: list[str] = field(default_factory=list)

    def type(self, command: str) -> None:
        if any(command.startswith(start) for start in SKIPPED):
            return
        for address, instead in self.outside.items():
            command = command.replace(address, instead)
        words = [
            found
            for word in shlex.split(os.path.expandvars(command))
            for found in (self._glob(word) or [word])
        ]
        self.typed.append(command)
        if words[0] == "duckdb":
            self._query(words[2])
        elif words[1] == "serve":
            self._serve(words[2:])
        else:
            self._run(words[1:])

    def _glob(self, word: str) -> list[str]:
        """As a shell does it."""
        if "*" not in word or word.startswith("select"):
            return []
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word))

    def _run(self, words: list[str]) -> None:
        if "gpt-5-mini" in words or any("openai:" in word for word in words):
            words = [*words, "--llm-endpoint", self.outside["the API"]]
        done = run_ludus(
            *smaller(words), cwd=self.folder, env=self.env, typed="crane\nquit\n", timeout=300
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr

    def _serve(self, words: list[str]) -> None:
        """On a port that is free, under which the next commands find it."""
        if "--port" not in words:
            words = [*words, "--port", "8000"]
        at = words.index("--port")
        port, rest = words[at + 1], [*words[1:at], *words[at + 2 :]]
        served = self.stack.enter_context(served_by_program(words[0], *rest, cwd=self.folder))
        self.outside[f"http://localhost:{port}"] = served.url

    def _query(self, sql: str) -> None:
        import duckdb

        with duckdb.connect() as base:
            assert base.execute(sql.replace("'runs/", f"'{self.folder}/runs/")).fetchall()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("reader")
    tiny = of_family("qwen3")
    saved(home / smollm2.release_id(), tiny)
    for name in ("Qwen3-0.6B", "Qwen3-1.7B"):
        saved(folder / "Qwen" / name, tiny)
    saved(folder / "openai" / "gpt-oss-20b", of_family("gptoss"))
    saved_seeing(folder / "Qwen" / "Qwen2.5-VL-3B-Instruct", "qwen2_5_vl")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    _write_nemo_gym_rollouts(home / "gym", folder)
    with ExitStack() as stack:
        hub = stack.enter_context(fake_hub())
        api = stack.enter_context(chat_stub())
        remote = stack.enter_context(serving("reasoning_gym"))
        yield Reader(
            folder,
            env={
                "LUDUS_CACHE": str(home),
                "OPENAI_API_KEY": "sk-nobody",
                "HF_ENDPOINT": hub.url,
                "HF_TOKEN": TOKEN,
                "HF_HOME": str(home / "hf"),
                "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", folder))),
            },
            outside={
                "https://user-reasoning-gym.hf.space": remote.url,
                "http://127.0.0.1:8090": api.url,
                "the API": api.url,
                "$SYSTEM_PROMPT": "You add numbers.",
            },
            stack=stack,
        )


def _write_nemo_gym_rollouts(work: Path, folder: Path) -> None:
    """Rollouts of another tool, which the pages tell a reader to import."""
    work.mkdir()
    run_ludus("collect", "catch", "-n", "4", "-o", "run", cwd=work)
    run_ludus("curate", "run", "--to", "nemo-gym", "-o", "rows", cwd=work)
    rollouts = (work / "rows" / "train.jsonl").read_bytes()
    for file in (folder / "rollouts.jsonl", folder / "results" / "rollouts.jsonl"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(rollouts)


def test_every_page_is_walked_through() -> None:
    assert {"README.md", *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))} == {*PAGES}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if page not in LONG_PAGES])
def test_every_command_of_the_page_works(reader: Reader, page: str) -> None:
    for command in commands_of(page):
        reader.type(command)


@pytest.mark.slow
def test_every_command_of_all_pages_works(reader: Reader) -> None:
    for page in PAGES:
        for command in commands_of(page):
            reader.type(command)


@pytest.mark.parametrize("page", sorted(LONG_PAGES))
def test_the_options_of_a_long_page_exist(page: str) -> None:
    for command in commands_of(page):
        if any(command.startswith(start) for start in SKIPPED):
            continue
        # Options are parsed before the help is shown.
        parsed = CliRunner().invoke(app, [*shlex.split(command)[1:], "--help"])
        assert parsed.exit_code == 0, parsed.output
