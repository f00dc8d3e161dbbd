"""Tokens per second of `ludus serve-model` beside other servers, at growing numbers of clients.

    python benchmarks/serve_model.py [--clients 1 16 64 256] [--tokens 128] [--minutes 8]
                                     [--model NAME] [--servers ludus transformers transformers-cb]
                                     [--llama-cpp PYTHON GGUF] [--vllm PYTHON]

Without --model, the model is random, of SmolLM2-135M's shape, and made on the spot: nothing is
downloaded, and all replies have the full length. Every client sends one chat request after the
other, each with another prompt; the tokens of the replies that ended in time are counted as the
server counts them. `transformers` is `transformers serve`, `transformers-cb` the same with
--continuous-batching. Other engines run in the environment of the given Python. A server starts
anew for each number of clients, because not all of them stop working for clients that have left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from benchmarks.random_model import save_random_model
else:
    from random_model import save_random_model

PORT = 8731
MAX_WINDOW_S, MIN_WINDOW_S = 30.0, 5.0
MAX_WARM_UP_S = 25.0
START_S = 20.0
"""About how long a server takes to start and to warm up."""
QUESTION = "Question {number}: what does a traveller need for a week in the mountains, and why?"


@dataclass(frozen=True, slots=True)
class Server:
    """How to start a server, and what it calls the model."""

    name: str
    command: Sequence[str]
    model: str
    env: dict[str, str] = field(default_factory=dict)
    batches: bool = True
    ready_path: str = "/health"


@dataclass(frozen=True, slots=True)
class Speed:
    tokens_per_second: float
    median_s: float
    """Median time of a request."""
    failures: int


def main() -> None:
    args = _parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    rows: dict[str, list[str]] = {}
    speeds: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(save_random_model(Path(folder) / "model"))
        servers = _servers(args, model)
        measurements = [(server, clients) for server in servers for clients in args.clients]
        for done, (server, clients) in enumerate(measurements):
            left_s = deadline - time.monotonic()
            window_s = min(MAX_WINDOW_S, left_s / (len(measurements) - done) - START_S)
            text = "no time left"
            if left_s > START_S + MIN_WINDOW_S:
                try:
                    window_s = max(MIN_WINDOW_S, window_s)
                    speed = _measure(server, clients, args.tokens, window_s, left_s - window_s)
                    speeds[server.name, clients] = speed.tokens_per_second
                    text = f"{speed.tokens_per_second:,.0f}"
                    note = f", {speed.failures} failed" if speed.failures else ""
                    print(
                        f"{server.name}, {clients} clients: {text} tokens/s, "
                        f"{speed.median_s:.2f} s per request{note}",
                        flush=True,
                    )
                except RuntimeError as error:
                    text = "failed"
                    print(f"{server.name}, {clients} clients: {error}", flush=True)
            rows.setdefault(server.name, []).append(text)
    _print_table(args, rows, speeds)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a reply")
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit of all together")
    parser.add_argument("--model", help="a model's folder or smollm2; default: a random one")
    parser.add_argument(
        "--servers",
        nargs="*",
        default=["ludus", "transformers", "transformers-cb"],
        choices=["ludus", "transformers", "transformers-cb"],
    )
    parser.add_argument("--llama-cpp", nargs=2, metavar=("PYTHON", "GGUF"))
    parser.add_argument("--vllm", metavar="PYTHON")
    return parser.parse_args()


def _servers(args: argparse.Namespace, model: str) -> list[Server]:
    from ludus.policy.model_ref import resolve_model

    address = ["--host", "127.0.0.1", "--port", str(PORT)]
    path = str(resolve_model(model).path)
    source = str(Path(__file__).parents[1] / "src")
    python_path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    ludus = [sys.executable, "-m", "ludus", "serve-model", path, *address]
    transformers = [sys.executable, "-m", "transformers.cli.transformers", "serve", path, *address]
    known = {
        "ludus": Server("ludus serve-model", ludus, "", {"PYTHONPATH": python_path}),
        "transformers": Server("transformers serve", transformers, path, batches=False),
        "transformers-cb": Server(
            "transformers serve --continuous-batching",
            [*transformers, "--continuous-batching"],
            path,
        ),
    }
    servers = [known[name] for name in args.servers]
    if args.llama_cpp:
        python, gguf = args.llama_cpp
        command = [python, "-m", "llama_cpp.server", "--model", gguf, *address]
        servers.append(
            Server("llama_cpp.server", command, "any", batches=False, ready_path="/v1/models")
        )
    if args.vllm:
        command = [args.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", path, *address]
        env = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        servers.append(Server("vllm", [*command, "--max-model-len", "2048"], path, env))
    return servers


def _measure(
    server: Server, clients: int, tokens: int, window_s: float, start_timeout_s: float
) -> Speed:
    with _running(server, start_timeout_s) as log:
        return asyncio.run(_load(server, clients, tokens, window_s, log))


@contextmanager
def _running(server: Server, start_timeout_s: float) -> Iterator[Path]:
    """Start the server; yields the file with its output."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        env = {**os.environ, "HF_HUB_OFFLINE": "1", **server.env}
        with log.open("wb") as output:
            process = subprocess.Popen(
                server.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        try:
            asyncio.run(_wait_until_up(server, process, log, start_timeout_s))
            yield log
        finally:
            # With the processes that it has started itself; none is left if it did not start.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _wait_until_up(
    server: Server, process: subprocess.Popen[bytes], log: Path, timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    url = f"http://127.0.0.1:{PORT}{server.ready_path}"
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"it did not start: {_last_line(log)}")
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(f"it was not up after {timeout_s:.0f} s: {_last_line(log)}")


async def _load(server: Server, clients: int, tokens: int, window_s: float, log: Path) -> Speed:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        # The first requests compile kernels and allocate memory; with as many at once as later.
        warm_up = clients if server.batches else 1
        warmed = await _run_clients(session, server, warm_up, tokens, MAX_WARM_UP_S, rounds=1)
        if not any(count for _, _, count in warmed):
            raise RuntimeError(f"it answers no request: {_last_line(log)}")
        start = time.monotonic()
        replies = await _run_clients(session, server, clients, tokens, window_s)
    good = [reply for reply in replies if reply[2]]
    if not good:
        raise RuntimeError(f"no reply within {window_s:.0f} s")
    elapsed_s = max(end for _, end, _ in good) - start
    times = sorted(end - begin for begin, end, _ in good)
    total = sum(count for _, _, count in good)
    return Speed(total / elapsed_s, times[len(times) // 2], len(replies) - len(good))


async def _run_clients(
    session: aiohttp.ClientSession,
    server: Server,
    clients: int,
    tokens: int,
    window_s: float,
    rounds: int | None = None,
) -> list[tuple[float, float, int]]:
    """Start, end and tokens of each reply within the window; 0 tokens for a failed one."""
    replies: list[tuple[float, float, int]] = []

    async def run_client(number: int) -> None:
        sent = 0
        while rounds is None or sent < rounds:
            begin = time.monotonic()
            count = await _ask(session, server, number + clients * sent, tokens)
            replies.append((begin, time.monotonic(), count))
            sent += 1

    tasks = [asyncio.create_task(run_client(number)) for number in range(clients)]
    await asyncio.wait(tasks, timeout=window_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return replies


async def _ask(session: aiohttp.ClientSession, server: Server, number: int, tokens: int) -> int:
    body = {
        "messages": [{"role": "user", "content": QUESTION.format(number=number)}],
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": number,
    }
    if server.model:
        body["model"] = server.model
    async with session.post(f"http://127.0.0.1:{PORT}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            await asyncio.sleep(0.1)
            return 0
        usage = (await response.json()).get("usage") or {}
        return int(usage.get("completion_tokens") or 0)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing"


def _print_table(
    args: argparse.Namespace, rows: dict[str, list[str]], speeds: dict[tuple[str, int], float]
) -> None:
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"\n{device}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{args.model or 'random SmolLM2-135M'}, replies of up to {args.tokens} tokens"
    )
    width = max(map(len, rows), default=0) + 2
    print(f"{'tokens/s with clients:':{width}}" + "".join(f"{n:>14}" for n in args.clients))
    for name, cells in rows.items():
        print(f"{name:{width}}" + "".join(f"{cell:>14}" for cell in cells))
    first, *others = rows
    for other in others:
        ratios = [
            f"{speeds[first, n] / speeds[other, n]:.1f} x"
            if (first, n) in speeds and (other, n) in speeds
            else "-"
            for n in args.clients
        ]
        print(f"{'to ' + other:{width}}" + "".join(f"{ratio:>14}" for ratio in ratios))


if __name__ == "__main__":
    main()
