"""Progress of work in named steps (`ludus curate`, `import`, `lint`): a bar on terminals only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ludus.cli.display.signals import handle_signals
from ludus.cli.display.status import PhaseView, terminal_status
from ludus.rollout.progress import PhaseProgress

ProgressCallback = Callable[[str, int, int | None], None]


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Yield a callback that takes a step's name, what is done of it, and its total if known.

    SIGINT and SIGTERM raise, also from within the callback, so that unfinished output is removed.
    """
    with handle_signals() as raise_pending, terminal_status() as status:
        phase: PhaseProgress | None = None

        def show(name: str, done: int, total: int | None) -> None:
            nonlocal phase
            raise_pending()
            if phase is None or phase.phase != name:
                phase = PhaseProgress(name, total)
                status.show(PhaseView(phase))
            phase.total = total
            phase.advance(done - phase.done)

        yield show
