"""Advice for each check that fails, in one sentence."""

from __future__ import annotations

FIX_LINE = "Fix that line; `ludus check --debug` prints the traceback."
SERVER_LOG = "The server's log names the file and the line."
TOO_SLOW = "Find the call that does not return, and give it a timeout."
HIGH_FLOOR = (
    "More than half of the reward is had without solving anything: judge a model by how far it is "
    "above this floor, or give less for what is only partly right."
)
RETURN_MOVE = "Return the next ToolCall (or action) from oracle() until the episode is done."

ADVICE_BY_CHECK = {
    "starts": "Make the constructor work without arguments, and decorate a method with @tool.",
    "resets": "Return the first observation from reset(), with done=False.",
    "plays an episode": "Step through it with `ludus play`, and fix the error.",
    "observations fit the schema": (
        "Return what the observation class declares, or correct its fields."
    ),
    "what the model sees": (
        "Return observations of text, numbers, lists and images, which can be shown to a model."
    ),
    "same seed, same episode": (
        "Draw everything from a random.Random(seed) created in reset(), never from the global "
        "generator, the clock or the order of a set."
    ),
    "different seeds differ": "Select the task in reset() by its seed.",
    "rewards are finite numbers": (
        "Pass a finite number to self.finish(reward) or self.award(reward) in every episode."
    ),
    "progress grows towards the goal": (
        "Return from progress() how near the episode is to its goal, higher at its end than after "
        "reset(), or do not override it."
    ),
    "step before reset is an error": "Raise an exception in step() before reset().",
    "step after the end is an error": "Raise an exception in step() once the episode is done.",
    "enough sessions at once": ("Serve with a larger `max_sessions`, or require fewer `sessions`."),
    "sessions do not see each other": (
        "Keep all state in self and set it in reset(): none in the class, the module or files."
    ),
    "the oracle reaches the top reward": (
        "Correct oracle(), or set max_reward in the class to the best return of an episode."
    ),
    "weak players score below the oracle": (
        "Give no reward for what solves nothing: try the reward on empty, constant, random and "
        "copied answers. In a game, choose a stronger opponent. If any action shall be rewarded, "
        "set rewards_any_action = True in the class."
    ),
}
