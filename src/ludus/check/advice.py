"""What to do about each check that fails, in one sentence."""

from __future__ import annotations

FIX_LINE = "Fix that line; --debug prints the traceback."
SERVER_LOG = "The server's log names the file and the line."
TOO_SLOW = "Find out which call does not return, and give what it waits for a time limit."
RETURN_MOVE = "Return the next ToolCall (or action) from oracle() until the episode is done."

ADVICE_BY_CHECK = {
    "starts": "Let the class be built without arguments, and put @tool above a method.",
    "resets": "Return the text that a model is shown first from reset(), with done=False.",
    "plays an episode": "Follow it move by move with `ludus play`, and correct what it shows.",
    "observations fit the schema": (
        "Return what the class of the observation declares, or correct its fields."
    ),
    "what the model sees": (
        "Return observations of text, numbers, lists and images: these can be shown to a model."
    ),
    "same seed, same episode": (
        "Draw everything from random.Random(seed), made in reset(); never from the global "
        "generator, the clock or the order of a set."
    ),
    "different seeds differ": "Let the seed that reset() is given choose the task.",
    "rewards are finite numbers": (
        "Give a finite number to self.finish(reward) or self.award(reward) in every episode."
    ),
    "step before reset is an error": "Raise an exception in step() until reset() was called.",
    "step after the end is an error": "Raise an exception in step() once the episode is done.",
    "enough sessions at once": (
        "Serve with a larger --max-sessions, or ask for fewer here with --sessions."
    ),
    "sessions do not see each other": (
        "Keep all state in self, set in reset(): nothing in the class, the module or in files."
    ),
    "the oracle reaches the top reward": (
        "Correct oracle(), or set max_reward in the class to the best return of an episode."
    ),
}
