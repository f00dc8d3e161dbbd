"""Every command and Python block of README and docs, in order and in one folder, at small sizes.

What stands outside is stood in for: a paid API and the Hub by servers on loopback, models by tiny
ones under the same names, and files that a reader is said to have by small ones.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
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
from recipe.small_recipes import REDUCED, set_flags
from tiny_tokenizers import of_family
from world import serving

from ludus.cli.commands import SECTIONS
from ludus.cli.flags import find_command, flags_of
from ludus.policy import smollm2

ROOT = Path(__file__).parents[2]
GUIDES = (
    *("collecting", "curating", "training", "tutor", "thinking", "grpo", "diagnosing"),
    *("evaluating", "reports", "viewer"),
)
MORE = (
    *("recipes", "shipped", "rewards", "containers", "environments", "serving", "serving-models"),
    *("python", "reward-floors"),
    *("scale", "architecture", "glossary", "benchmarks"),
    *("first-environment", "troubleshooting", "operations", "publishing", "formats"),
    *(f"coming-from-{tool}" for tool in ("openenv", "nemo-gym", "verifiers", "trl")),
)
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("quickstart", *GUIDES, *MORE))]
"""In the order of the loop: a page may use what the pages before it have made."""
LONG_PAGES = {
    f"docs/{name}.md"
    for name in (
        *("training", "tutor", "thinking", "grpo", "diagnosing", "shipped", "rewards"),
        *("first-environment", "troubleshooting"),
        *("coming-from-openenv", "coming-from-nemo-gym", "coming-from-trl"),
        "serving-models",
    )
}
"""Pages on which models are trained or served, or many environments played; `make test-slow` types
these."""
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
    "ludus view": "tests/viewer opens its page in a browser",
    "ludus run chain-sum.toml": "tests/cli/commands/test_run.py runs all recipes",
    "ray start": "tests/rollout/test_ray.py starts a cluster",
    "ludus collect wordle --ray": "tests/rollout/test_ray.py starts a cluster",
    "ludus eval wordle --ray": "tests/rollout/test_ray.py starts a cluster",
    "ludus serve wordle --host 0.0.0.0": "is for several machines",
    "ludus collect http://A:8000": "is for several machines",
    "ludus build wordle": "builds an image",
    "ludus build browsergym": "builds an image",
    "ludus build my_env.py:Guess": "builds an image",
    "ludus --install-completion": "changes the settings of the user's shell",
    "ludus serve-model models/sft_final": "a folder of the reader's",
    "ludus show runs/my-agent": "tests/cli/commands/test_serve_model.py records and shows",
    "ludus curate runs/my-agent": "tests/cli/commands/test_serve_model.py records and curates",
    "make": "runs the tests themselves, or what takes minutes",
    "python benchmarks/": "takes minutes, or a GPU",
    "python -m llama_cpp.server": "needs another engine",
    "accelerate launch": "tests/train/test_processes.py trains in several processes",
}
"""What is not typed, by how it begins, and why."""
PYTHON_ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/curating.md": "tests/test_readme.py",
    "docs/training.md": "tests/test_readme.py",
    "docs/python.md": "tests/test_python_docs.py",
}
"""Pages whose Python is run, and its output checked, by other tests."""
PYTHON_SKIPPED = {
    "import json\n\nfrom datasets": "tests/cli/commands/test_collect_hub.py loads such records",
    "from ludus.envs.echo import EchoAction": "tests/client starts containers",
    "def oracle(self": "a method, without its class",
    "class Maze(ToolEnvironment):\n    ...": "a method, with a class that is not spelled out",
    "import ludus\n\nconfig = ludus.GRPOConfig(steps": "tests/train/grpo trains, in fewer steps",
    "from trl import GRPOConfig": "tests/train/trl_compat trains with both",
    "import ludus\n\nconfig = ludus.TutorConfig": "tests/tutoring runs rounds",
    "import ludus\n\njudge": "tests/scoring has judges",
    "from ludus import Rubric, RubricPart, ToolEnv": "tests/test_rewards_docs.py plays it",
    "from openai import OpenAI": "tests/serve/model uses the official client",
    "import httpx\nfrom openai import OpenAI": "tests/serve/model records conversations",
    "# checks.py": "tests/envs/test_mcp.py has checks",
}
"""Blocks that are not run here, by how they begin, and why, or where they are run."""


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
COMMANDS = [path for section in SECTIONS.values() for path in section]
LINE = re.compile(rf"(ludus|duckdb|{'|'.join(map(re.escape, SKIPPED))})\b")


FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMED_FILE = re.compile(r"# ([\w/-]+\.py)\n")
"""The first line of a block that is the content of a file."""


def steps_of(page: str) -> Iterator[tuple[str, str]]:
    """What a page tells its reader to do, in order: ("command", line) and ("python", block)."""
    text, at = (ROOT / page).read_text(), 0
    for fence in FENCE.finditer(text):
        yield from (("command", line) for line in commands_in(text[at : fence.start()]))
        if fence[1] == "python":
            yield "python", fence[2]
        at = fence.end()
    yield from (("command", line) for line in commands_in(text[at:]))


def commands_of(page: str) -> list[str]:
    return [text for kind, text in steps_of(page) if kind == "command"]


def commands_in(text: str) -> list[str]:
    """The commands in indented blocks, without comments and line breaks."""
    block = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    lines = (re.sub(r"\s+#\s.*", "", line) for line in block.replace("\\\n", " ").splitlines())
    return [" ".join(line.split()) for line in lines if LINE.match(line)]


def smaller(words: list[str]) -> list[str]:
    """The same command with little to do; of an option that is given twice the last counts."""
    more: list[str] = []
    if words[0] == "run" and "--dry-run" not in words:
        name = Path(words[1]).stem
        more = [] if "--only" in words or "--from" in words else set_flags(REDUCED[name])
    elif words[:2] == ["train", "grpo"]:
        more = shlex.split("--steps 1 --groups 2 --group-size 2 --max-episode-tokens 16")
        more += ["--max-turns", "2", "--set", "max_tokens=16"]
        more += ["--eval-every", "1" if "--eval-every" in words else "0"]
        more += ["--eval-episodes", "2"] if "--eval-every" in words else []
    elif words[0] == "train":
        few = ["--epochs", "1"] if "--epochs" in words else ["--steps", "2"]
        more = [*few, "--batch-size", "2"]
        if words[1] == "tutor":
            more += shlex.split("--rounds 2 --episodes 4 --eval-episodes 2")
            more += ["--max-tokens", "8", "--max-turns", "2"]
    elif words[0] in ("collect", "eval") and "--tasks" not in words:
        more = ["-n", "20" if words[0] == "collect" else "4"]
    local = ("hf:", "smollm2", "models/")
    if words[0] == "eval" or (words[0] == "collect" and any(w.startswith(local) for w in words)):
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

    def follow(self, page: str) -> None:
        """Do what the page says."""
        for kind, text in steps_of(page):
            if kind == "command":
                self.type(text)
            elif page not in PYTHON_ELSEWHERE:
                self.run_python(text)

    def run_python(self, code: str) -> None:
        """Run a block as a script, or write the file that its first line names."""
        if any(code.startswith(start) for start in PYTHON_SKIPPED):
            return
        if named := NAMED_FILE.match(code):
            file = self.folder / named[1]
            if file.name not in FILES:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(code)
            return
        for address, instead in self.outside.items():
            code = code.replace(address, instead)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"

    def type(self, command: str) -> None:
        if package := re.fullmatch(r"pip install -e (\w+)( pytest)?", command):
            self._install(package[1])
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
        elif words[1] in ("serve", "serve-model"):
            self._serve(words[1], words[2:])
        else:
            self._run(words[1:])

    def _install(self, name: str) -> None:
        """As `pip install -e`, without an index: the sources on the path, and metadata beside."""
        project = tomllib.loads((self.folder / name / "pyproject.toml").read_text())["project"]
        self.env["PYTHONPATH"] = os.pathsep.join(
            (str(self.folder / name / "src"), self.env["PYTHONPATH"])
        )
        metadata = self.folder / name / "src" / f"{name}-{project['version']}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
            + "".join(f"Requires-Dist: {needed}\n" for needed in project["dependencies"])
        )
        (metadata / "top_level.txt").write_text(f"{name}\n")
        ((group, points),) = project["entry-points"].items()
        lines = (f"{key} = {value}" for key, value in points.items())
        (metadata / "entry_points.txt").write_text("\n".join((f"[{group}]", *lines, "")))

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

    def _serve(self, command: str, words: list[str]) -> None:
        """On a port that is free, under which the next commands find it."""
        if "--port" not in words:
            words = [*words, "--port", "8000"]
        at = words.index("--port")
        port, rest = words[at + 1], [*words[1:at], *words[at + 2 :]]
        served = self.stack.enter_context(
            served_by_program(words[0], *rest, cwd=self.folder, command=command, env=self.env)
        )
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
    reader.follow(page)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_of_all_pages_works(reader: Reader) -> None:
    for page in PAGES:
        reader.follow(page)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_can_be_compiled(page: str) -> None:
    for kind, code in steps_of(page):
        if kind == "python":
            compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_every_reason_not_to_run_a_block_is_needed() -> None:
    blocks = [text for page in PAGES for kind, text in steps_of(page) if kind == "python"]
    for start in PYTHON_SKIPPED:
        assert any(block.startswith(start) for block in blocks), start
    for page, elsewhere in PYTHON_ELSEWHERE.items():
        assert page in PAGES and (ROOT / elsewhere).is_file()


@pytest.mark.parametrize("page", PAGES)
def test_the_options_of_the_page_are_listed_by_help(page: str) -> None:
    spans = re.findall(r"`ludus ([^`\n]+)`", (ROOT / page).read_text())
    commands = [command[6:] for command in commands_of(page) if command.startswith("ludus ")]
    for words in map(str.split, [*spans, *commands]):
        for path in COMMANDS:
            if words[: len(path.split())] != path.split():
                continue
            flags = [
                each for each in flags_of(find_command(path)).values() if not each.option.hidden
            ]
            listed = {flag.name for flag in flags}
            listed |= {f"--no-{flag.name[2:]}" for flag in flags if flag.is_switch}
            listed |= {f"-{flag.option.short}" for flag in flags if flag.option.short}
            given = {found[0] for word in words if (found := re.match(r"--?[a-z][a-z-]*", word))}
            assert given <= {*listed, "--help", "--help-all"}, " ".join(words)
