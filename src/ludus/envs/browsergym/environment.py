"""The browsergym environment: a task of MiniWoB++, played on a real browser."""

from __future__ import annotations

import ast
import inspect
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, NoReturn

from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import InvalidArguments, collect_tools, tool
from ludus.envs.browsergym import BrowserGymAction, BrowserGymObservation
from ludus.envs.browsergym.page import INTERACTIVE_ROLES, ORACLES, Element, task_names
from ludus.envs.browsergym.worker import BrowserFailed, BrowserWorker, browser_pool, find_chromium
from ludus.errors import ToolError, did_you_mean
from ludus.protocol.types import Action, Observation, State

DEFAULT_TASK = "click-button"
CALL_TIMEOUT_S = 60.0
"""Time after which a browser counts as hung."""
MAX_WAIT_MS = 60_000
MAX_SCROLL_PX = 100_000

_INSTRUCTION = """\
You operate a web browser. Reach the goal on the page below with the tools; each call is an action.
The page is shown as a list of its elements: [bid], kind, 'name', value and state. An element is \
indented below the one that contains it. Tools take the bid, which is the number in brackets; an \
element without one cannot be operated. Elements and bids may change after every action.
Many pages wait until you click Submit or the like; a wrong answer ends the task, too.
The reward is 1 if you reach the goal, 0 if not; some pages give part of it for a part of the goal.
You have {actions} actions, and calls that fail count."""


class BrowserGym(ToolEnvironment):
    """Reach a goal on a web page of MiniWoB++, in a real browser.

    Every page is a variant: `browsergym:login-user`. The bare name is click-button.

    Tools:
        click(bid): clicks an element.
        fill(bid, value): replaces the text of a field, or selects the option of a list.
        press(bid, key_comb): focuses an element and presses a key or a combination.
        scroll(delta_x, delta_y, bid): turns the wheel over an element or the page.
        noop(wait_ms): waits.
    Action:
        Besides calls of tools, OpenEnv's `action_str`: a call in text, `click('13')`.
    Observation:
        The goal and the accessibility tree of the page, with `screenshot` also an image. An action
        that could not be carried out is answered with the reason. Beside this text the fields of
        OpenEnv's observation: `axtree_txt` is the tree as BrowserGym writes it, also after an
        action that failed and at the end.
    Reward:
        What the page gives, without its discount for time: 1.0 for the goal, on some pages less
        for an answer that is nearly right; 0.0 instead of its negative rewards. Its part `raw` is
        the reward of the page, from -1 to 1.
    Episode end:
        The page decides, is left, or `max_actions` calls were made.
    Task arguments:
        seed: which problem the page poses (random).
        task_name: the page (the variant).
        screenshot: whether observations have an image of the page (False).
        max_actions: how many calls there are (30).

    Time in the page is virtual: it passes only with actions, a second each.
    The browser is `$LUDUS_CHROMIUM`, or the first Chromium on the path.
    """

    blocking = True
    max_sessions = max(4, 2 * (os.cpu_count() or 1))
    action_type: ClassVar[type[Action] | None] = BrowserGymAction

    def __init__(self, variant: str | None = None) -> None:
        find_chromium()
        self._variant = variant or DEFAULT_TASK
        self._worker: BrowserWorker | None = None
        self.task_name = self._variant
        self.seed = 0
        self.goal = ""
        self.url = ""
        self.elements: list[Element] = []
        self._axtree = ""
        self.actions_left = 0

    @classmethod
    def variants(cls) -> Sequence[str]:
        return task_names()

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        return {"task_name": variant}

    @classmethod
    def oracle_variants(cls) -> Sequence[str]:
        return sorted(ORACLES)

    def reset(
        self,
        *,
        seed: int | None = None,
        task_name: str | None = None,
        screenshot: bool = False,
        max_actions: int = 30,
    ) -> BrowserGymObservation:
        self.task_name = task_name or self._variant
        if self.task_name not in task_names():
            hint = did_you_mean(self.task_name, task_names(), "See `ludus envs browsergym`.")
            raise ValueError(f"MiniWoB++ has no page {self.task_name!r}. {hint}")
        if max_actions < 1:
            raise ValueError(f"max_actions must be positive, got {max_actions}.")
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self.max_turns = self.actions_left = max_actions
        page = self._ask(
            "start_episode",
            task_name=self.task_name,
            # NumPy's generators, which BrowserGym seeds, take 32 bits.
            seed=self.seed % 2**32,
            screenshot=screenshot,
        )
        self.goal = page["goal"]
        return self._observe(page, _INSTRUCTION.format(actions=max_actions))

    def step(self, action: Action) -> Observation | Awaitable[Observation]:
        """Call a tool, by name or by `action_str`."""
        if not isinstance(action, BrowserGymAction):
            return super().step(action)
        self._outcome = None
        tools = collect_tools(type(self))
        try:
            call = parse_browser_action(
                action.action_str, {name: getattr(self, name) for name in tools}
            )
            observation = getattr(self, call.name)(**tools[call.name].bind(call.arguments))
        except (ToolError, InvalidArguments) as error:
            observation = BrowserGymObservation(
                goal=self.goal,
                text=f"Error: {error}",
                axtree_txt=self._axtree,
                last_action_error=True,
                actions_left=self.actions_left,
                reward=0.0,
                url=self.url,
            )
        return self._apply_outcome(observation)

    @tool
    def click(self, bid: str) -> BrowserGymObservation:
        """Click an element.

        Args:
            bid: The number in brackets before the element.
        """
        return self._act("click", bid=bid)

    @tool
    def fill(self, bid: str, value: str) -> BrowserGymObservation:
        """Replace the text of a field; in a list (combobox), select the option of that name.

        Args:
            bid: The number in brackets before the element.
            value: The text, exactly as it is to stand there.
        """
        return self._act("fill", bid=bid, value=value)

    @tool
    def press(self, bid: str, key_comb: str) -> BrowserGymObservation:
        """Focus an element and press a key or a combination of keys.

        Args:
            bid: The number in brackets before the element.
            key_comb: For example: Enter, ArrowDown, a, or Control+a.
        """
        return self._act("press", bid=bid, key_comb=key_comb)

    @tool
    def scroll(self, delta_x: float, delta_y: float, bid: str = "") -> BrowserGymObservation:
        """Turn the mouse wheel.

        Args:
            delta_x: Pixels to the right; negative: to the left.
            delta_y: Pixels down; negative: up.
            bid: The element to scroll in; by default the page.
        """
        if max(abs(delta_x), abs(delta_y)) <= MAX_SCROLL_PX:
            return self._act("scroll", delta_x=delta_x, delta_y=delta_y, bid=bid)
        self._refuse(
            f"`delta_x` and `delta_y` must be between -{MAX_SCROLL_PX} and {MAX_SCROLL_PX}."
        )

    @tool
    def noop(self, wait_ms: float = 1000) -> BrowserGymObservation:
        """Wait, for pages that change by themselves.

        Args:
            wait_ms: How long, in milliseconds.
        """
        if 0 <= wait_ms <= MAX_WAIT_MS:
            return self._act("noop", wait_ms=wait_ms)
        self._refuse(f"`wait_ms` must be between 0 and {MAX_WAIT_MS}.")

    @property
    def state(self) -> State:
        return State.model_validate(
            {
                "task_name": self.task_name,
                "seed": self.seed,
                "goal": self.goal,
                "url": self.url,
                "actions_left": self.actions_left,
            }
        )

    def oracle(self) -> ToolCall | None:
        """The next action by what the page shows; for the pages in `ORACLES`."""
        if self.task_name not in ORACLES:
            # `ludus check` takes this class of error to mean that there is no oracle.
            raise NotImplementedError(
                f"The page {self.task_name} has no oracle. Pages that have one: "
                f"{', '.join(sorted(ORACLES))}."
            )
        return ORACLES[self.task_name](self.goal, self.elements)

    def random_action(self, rng: random.Random) -> ToolCall:
        """A click on an element that can be operated; without any, a second of waiting."""
        bids = [
            element.bid
            for element in self.elements
            if element.bid and (element.clickable or element.role in INTERACTIVE_ROLES)
        ]
        if not bids:
            return ToolCall(name="noop")
        return ToolCall(name="click", arguments={"bid": rng.choice(bids)})

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            browser_pool().give_back(worker)

    def _act(self, action: str, *, bid: str = "", **arguments: object) -> BrowserGymObservation:
        arguments["bid"] = bid.strip().strip("[]")
        page = self._ask("act", action=action, arguments=arguments)
        if page["refusal"] is not None:
            self._refuse(page["refusal"])
        self.actions_left -= 1
        return self._observe(page)

    def _refuse(self, reason: str) -> NoReturn:
        """Raise the error of an action that was not carried out; it is counted like others."""
        self.actions_left -= 1
        if self.actions_left > 0:
            raise ToolError(f"{reason} Actions left: {self.actions_left}.")
        self.finish(0.0, raw=0.0)
        raise ToolError(f"{reason} No actions are left.")

    def _observe(self, page: JsonObject, instruction: str = "") -> BrowserGymObservation:
        """The observation of a page; ends the episode with the page or the last action."""
        self.url = page["url"]
        self.elements = [Element(**each) for each in page["elements"]]
        self._axtree = page["axtree"]
        raw = page["raw_reward"]
        text = tree = "\n".join(map(str, self.elements))
        if page["has_left"]:
            text = self.finish(0.0, "You have left the page of the task.", raw=0.0)
        elif page["done"]:
            verdict = "You have reached the goal." if raw >= 1 else "You have missed the goal."
            text = self.finish(min(max(raw, 0.0), 1.0), verdict, raw=raw)
        elif self.actions_left == 0:
            text = self.finish(0.0, f"No actions are left.\n{tree}", raw=0.0)
        return BrowserGymObservation(
            goal=self.goal,
            text=text,
            axtree_txt=page["axtree"],
            screenshot=page["screenshot"],
            actions_left=self.actions_left,
            reward=0.0,
            instruction=instruction,
            url=self.url,
        )

    def _ask(self, method: str, **arguments: object) -> JsonObject:
        """Send a request to the browser; a reset starts one if there is none.

        A browser that fails is ended.
        """
        pool = browser_pool()
        if self._worker is None:
            if method != "start_episode":
                raise BrowserFailed(
                    "The browser of this episode has failed. Reset to start another."
                )
            self._worker = pool.lend()
        try:
            return self._worker.call(method, timeout=CALL_TIMEOUT_S, **arguments)
        except BaseException:
            worker, self._worker = self._worker, None
            pool.drop(worker)
            raise


MAX_CHARS = 100_000


def parse_browser_action(text: str, tools: Mapping[str, Callable[..., object]]) -> ToolCall:
    """The tool that is called and its arguments by name; raises `ToolError`."""
    known = ", ".join(f"{name}(…)" for name in tools)
    try:
        if len(text) > MAX_CHARS:
            raise ValueError
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ToolError(f"An action is one call with literal arguments. There are: {known}.")
    name = call.func.id
    if name not in tools:
        hint = did_you_mean(name, tools, f"There are: {known}.")
        raise ToolError(f"No action is named {name!r}. {hint}")
    try:
        positional = [ast.literal_eval(each) for each in call.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        bound = inspect.signature(tools[name]).bind(*positional, **named)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(f"The arguments of {name} are wrong: {error}.") from None
    return ToolCall(name=name, arguments=dict(bound.arguments))
