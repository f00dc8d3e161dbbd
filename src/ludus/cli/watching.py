"""A bar for work whose steps have names: on a terminal only, elsewhere only the result counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield what is to be told: the step, how much of it is done, and how much there is."""
    from ludus.cli.console import console

    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda what, done, total: None
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield watch
