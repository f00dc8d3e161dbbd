"""How training shows itself, in the status display of a command or as JSON if asked; and what
Ctrl-C means to it: once after this step, twice at once.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from ludus.cli.console import console, harmless
from ludus.cli.status import PhaseView, Status, bar_line, status_on_stderr
from ludus.cli.story import Story
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_CODES = {"interrupted": 130, "terminated": 143}
_STOPPING = "Stopping after this step; Ctrl-C again stops at once."
_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Display:
    """Told how training goes, and shows it: its phases, and from the first step on the story."""

    def __init__(
        self, story: Story, status: Status, checked: Callable[[], None] | None = None
    ) -> None:
        self.story = story
        self.stopping: str | None = None
        self.begun = False
        self._status, self._checked = status, checked

    def phase(self, progress: PhaseProgress) -> None:
        """Another phase begins; between two steps the story goes on being shown with it."""
        view = PhaseView(progress)
        self._status.show(StepsView(self.story, view) if self.story.total else view)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        if self._checked is not None:
            self._checked()
        self.begun = True
        self.story.begin(total_steps, resumed_from)
        self.phase(PhaseProgress("Training"))

    def step(self, line: Mapping[str, Any]) -> None:
        """Keep the newest figures, and show them."""
        self.story.add(line)
        if self.story.is_whole(line):
            self._status.refresh()

    def say(self, words: str) -> None:
        """Something worth knowing."""
        self._status.say(words, "dim")

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.__exit__(*error)


class StepsView:
    """The steps so far and the figures of the story, and the phase that the next step is in."""

    def __init__(self, story: Story, phase: PhaseView) -> None:
        self._story, self._phase = story, phase

    @property
    def headline(self) -> str | None:
        return self._phase.headline

    def line(self) -> str:
        story = self._story
        steps = ", ".join([f"step {story.step:,}/{story.total:,}", *story.words()])
        return f"{steps}; {self._phase.line()}" if self._phase.has_counts else steps

    def picture(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        story = self._story
        said = [f"{story.step:,}/{story.total:,}", *story.heading()]
        head = bar_line("", said, total=story.total, done=story.step)
        below = Table.grid(padding=(0, 2))
        for name, words in story.rows(ascii_only=console(stderr=True).options.ascii_only):
            below.add_row(Text(name, style="bold"), Text(harmless(words)))
        return Group(head, below, self._phase.picture())


class JsonDisplay(Display):
    """One JSON object a line, on what is stdout now: others may be sent elsewhere later."""

    def __init__(self, story: Story, checked: Callable[[], None] | None = None) -> None:
        super().__init__(story, Status(), checked)
        self._to = sys.stdout

    def phase(self, progress: PhaseProgress) -> None:
        if progress.in_log:
            self._event("phase", phase=progress.phase)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        super().begin(total_steps, resumed_from)
        self._event("begin", total_steps=total_steps, resumed_from=resumed_from)

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        left = self.story.seconds_left
        self._event("step", **line, seconds_left=None if left is None else round(left, 1))

    def say(self, words: str) -> None:
        self._event("said", message=words)

    def _event(self, kind: str, **facts: Any) -> None:
        from ludus.train.facts import to_jsonable

        line = json.dumps(to_jsonable({"event": kind, **facts}), allow_nan=False)
        print(line, file=self._to, flush=True)


@contextmanager
def training_progress(method: str = "sft") -> Iterator[Display]:
    """A display for `ludus.sft`, `ludus.dpo` and `ludus.grpo` in scripts and notebooks.

        with ludus.training_progress("grpo") as watch:
            ludus.grpo("wordle", "models/wordle", "models/wordle-grpo", watch=watch)

    Ctrl-C stops after the step under way, and the same call goes on from there.
    """
    from ludus.cli.grpo_display import GrpoStory

    with display(GrpoStory() if method == "grpo" else Story(), as_json=False) as watch:
        yield watch


@contextmanager
def display(
    story: Story | None = None,
    *,
    as_json: bool,
    quiet: bool = False,
    checked: Callable[[], None] | None = None,
) -> Iterator[Display]:
    """The display that fits where the output goes; `checked` is called before the first step."""
    story = story or Story()
    shown = (
        JsonDisplay(story, checked)
        if as_json and not quiet
        else Display(story, Status() if quiet else status_on_stderr(), checked)
    )
    # Only the process that writes is told when it begins; the others stop when it does.
    shown.begun = quiet
    with shown, _hearing(shown):
        yield shown


@contextmanager
def _hearing(shown: Display) -> Iterator[None]:
    """Signals end training after the step that is under way; before the first one, at once."""

    def hear(number: int, frame: FrameType | None) -> None:
        if not shown.begun and number == signal.SIGTERM:
            raise SystemExit(EXIT_CODES["terminated"])
        if not shown.begun or shown.stopping is not None:
            raise KeyboardInterrupt
        shown.stopping = _REASONS[signal.Signals(number)]
        # Not said here: a signal may come in the middle of a print, which cannot be entered twice.
        Thread(target=shown.say, args=(_STOPPING,), daemon=True).start()

    before = {number: signal.getsignal(number) for number in _REASONS}
    # A job in the background is told by its shell to ignore interrupts, and goes on doing so.
    heard = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, was in heard.items():
            signal.signal(number, was)
