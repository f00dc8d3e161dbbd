"""How many options the largest commands list."""

from __future__ import annotations

from ludus.cli.flags import find_command, flags_of

LARGEST = (
    "train grpo", "train tutor", "collect", "curate", "eval", "train sft", "train dpo", "rescore",
    "serve-model", "serve",
)  # fmt: skip
MAX_LISTED = 200


def test_help_all_of_the_largest_commands_lists_few_options() -> None:
    listed = {
        command: [
            flag.key
            for flag in flags_of(find_command(command)).values()
            if not flag.option.hidden and not flag.positional
        ]
        for command in LARGEST
    }
    assert sum(map(len, listed.values())) <= MAX_LISTED, listed
