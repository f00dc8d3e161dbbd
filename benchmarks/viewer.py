"""`ludus view` over a run with many episodes, in a real browser.

    python benchmarks/viewer.py [--episodes 100000]

Generates the run, starts the program and opens its page in headless Chromium. Measured in the page:
the time from the address to the first rows, also while the run is still being read, and from a
change of the filter to the new rows. Of the program: the time until everything is indexed, the CPU
time for it and the peak of its memory. Files are in a temporary folder and are removed.

Needs Chromium and playwright (`pip install 'ludus-rl[browsergym]'`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from generated_runs import write_run

FILTERS = {
    "reward > 0.9": ("Where", "reward > 0.9"),
    "two columns": ("Where", "turns = 2 AND stop_reason = 'max_tokens'"),
    "a field of the task": ("Where", "task->>'$.terms' = '3'"),
    "messages": ("Where", "len(list_filter(messages, lambda m: contains(m.content, 'hint'))) > 2"),
    "search, some match": ("Search", "total carry"),
    "search, none matches": ("Search", "no such text"),
}
"""Label and content of a field of the filter, by the name in the table."""
SORTS = ("Reward", "Tokens")
MAX_SECONDS, MAX_MEMORY_MB = 1.0, 500
TIMEOUT_MS = 120_000


@contextmanager
def start_viewer(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program as a process, and the address that it prints."""
    command = [sys.executable, "-m", "ludus", "view", str(folder)]
    environment = {**os.environ, "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        address = re.search(r"http\S+", process.stdout.readline())
        assert address is not None, "the program did not start"
        yield process, address[0]
    finally:
        process.terminate()
        process.wait()


def read_status(process: subprocess.Popen[str]) -> tuple[float, int]:
    """CPU seconds so far, and the peak of the memory in MB."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert peak is not None
    return ticks / os.sysconf("SC_CLK_TCK"), int(peak[1]) // 1024


def measure(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def show_rows(page: Any, action: Callable[[], object]) -> None:
    """Do something that changes the table, and wait until it shows the answer."""
    with page.expect_response(lambda response: "/api/episodes" in response.url):
        action()
    page.locator(".episodes-list[aria-busy=false]").wait_for()
    page.locator(".virtual-row .badge, .empty").first.wait_for()


def open_episodes(page: Any, address: str) -> None:
    show_rows(page, lambda: page.goto(f"{address}#/episodes"))


def change_filter(page: Any, label: str, text: str) -> None:
    field = page.get_by_label(label, exact=True)
    field.fill(text)
    show_rows(page, lambda: field.press("Enter"))


def is_indexed(page: Any, address: str) -> bool:
    state = page.request.get(f"{address}api/state").json()
    return bool(state["indexed_bytes"] == state["total_bytes"])


def run_benchmark(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.geteuid() != 0
        )
        start = time.perf_counter()
        with start_viewer(folder) as (process, address):
            yield "program started", f"{time.perf_counter() - start:.2f} s"
            page = open_page(browser)
            seconds = measure(lambda: open_episodes(page, address))
            yield "first rows, while the run is being read", f"{seconds:.2f} s"
            while not is_indexed(page, address):
                time.sleep(0.2)
            cpu, _ = read_status(process)
            seconds = time.perf_counter() - start
            yield "all episodes indexed", f"{seconds:.1f} s ({cpu:.1f} s of CPU time)"
            page = open_page(browser)
            seconds = measure(lambda: open_episodes(page, address))
            yield "first rows, afterwards", f"{seconds:.2f} s"
            yield from measure_filters(page)
            yield "open an episode", f"{measure(lambda: open_first(page)):.2f} s"
            _, peak = read_status(process)
            yield "peak memory of the program", f"{peak} MB (limit {MAX_MEMORY_MB})"
        browser.close()


def open_page(browser: Any) -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    return page


def measure_filters(page: Any) -> Iterator[tuple[str, str]]:
    """Yield a row for each filter and each order, and one for the slowest."""
    times = []
    for name, (label, text) in FILTERS.items():
        times.append(measure(partial(change_filter, page, label, text)))
        yield f"filter: {name}", f"{times[-1]:.2f} s"
        change_filter(page, label, "")
    for column in SORTS:
        button = page.get_by_role("button", name=column)
        times.append(measure(partial(show_rows, page, button.click)))
        yield f"sort: {column}", f"{times[-1]:.2f} s"
    yield "slowest filter or order", f"{max(times):.2f} s (limit {MAX_SECONDS:g})"


def open_first(page: Any) -> None:
    page.locator(".virtual-row .question").first.click()
    page.locator(".transcript .entry").first.wait_for()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    options = parser.parse_args()
    load, *_ = os.getloadavg()
    print(f"{os.cpu_count()} cores, load average {load:.1f}")
    with tempfile.TemporaryDirectory(prefix="ludus-viewer-") as name:
        folder = Path(name)
        seconds = measure(lambda: write_run(folder / "run", options.episodes))
        size = (folder / "run" / "episodes.jsonl").stat().st_size / 1e9
        print(f"{options.episodes:,} episodes ({size:.2f} GB), generated in {seconds:.1f} s")
        for title, value in run_benchmark(folder):
            print(f"{title:<40}{value}", flush=True)


if __name__ == "__main__":
    main()
