"""The commands of the program, one module for each."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Start": {
        "run": ("recipes", "Run a recipe: the whole loop from one file."),
        "new": ("recipes", "Copy a built-in recipe to edit it."),
        "doctor": ("doctor", "Check the installation, and say how to complete it."),
    },
    "Environments": {
        "envs": ("environments", "List the installed environments, or describe one."),
        "play": ("environments", "Play an episode yourself."),
        "init": ("environments", "Create a package for an environment of your own."),
        "check": ("environments", "Test what training relies on."),
        "serve": ("serve", "Serve an environment to OpenEnv and MCP clients."),
        "build": ("publish", "Package an environment as a container."),
    },
    "The loop": {
        "collect": ("collect", "Play episodes concurrently, and store all of them."),
        "import": ("import_cmd", "Convert rollouts of other tools."),
        "rescore": ("rescore", "Give stored episodes new rewards."),
        "curate": ("curate", "Select episodes, and write rows for training."),
        "lint": ("lint", "Check rows, and show which tokens are trained on."),
        "train sft": ("train", "Supervised fine-tuning on conversations."),
        "train dpo": ("train", "Direct preference optimization on pairs of episodes."),
        "train grpo": ("train", "Reinforcement learning in an environment."),
        "train tutor": ("train", "Rounds in which a tutor corrects a model."),
        "diagnose": ("diagnose", "Say whether a GRPO run learned, and what to change."),
        "eval": ("evaluate", "Compare models on the same held-out tasks."),
        "push env": ("publish", "Upload an environment as a Space."),
        "push dataset": ("publish", "Upload a run or a data set."),
        "push model": ("publish", "Upload a trained model."),
        "serve-model": ("serve", "Serve a model behind OpenAI's API."),
    },
    "Results": {
        "runs": ("runs", "List runs with their rewards."),
        "show": ("show", "Print an episode, a row or an evaluation."),
        "view": ("view", "Look at everything in the browser."),
        "report": ("view", "Write one page to share."),
    },
}
"""Module and summary of each command, by section of the help. The function is named for all words
of the command or for the last one: `push_env_command`, `sft_command`."""

GROUPS: Mapping[str, str] = {
    "train": "Train a model: SFT, DPO, GRPO, or rounds with a tutor.",
    "push": "Upload environments, data sets and models to the Hub.",
}
"""Commands of several words begin with one of these."""

STAGES: Mapping[str, str] = {
    "collect": "collect", "curate": "curate", "sft": "train sft", "dpo": "train dpo",
    "tutor": "train tutor", "grpo": "train grpo", "eval": "eval", "report": "report",
    "push env": "push env", "push dataset": "push dataset", "push model": "push model",
}  # fmt: skip
"""The commands that a stage of a recipe can run, by their name there."""
