"""The `ludus` program: its commands, and errors as one red line on stderr."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from ludus.cli.commands import GROUPS, SECTIONS
from ludus.cli.flags import (
    HELP_ALL,
    INSTALL_COMPLETION,
    Flag,
    apply_settings,
    describe_usage_error,
    examples_of,
    find_command,
    flags_of,
    name_flags,
)
from ludus.errors import LudusError

_SETTING = re.compile(r"\w+=|\{|(on|off|true|false)$")
_COMPLETE = "__complete"
"""Shell completion scripts run `ludus __complete collect wo` to list completions."""
_ABOUT_HELP_ALL = f"With {HELP_ALL}, a command lists all of its options."
_DESCRIPTION = "Collect episodes, curate them, and train and evaluate language-model agents."


def build_app(arguments: Sequence[str]) -> App:
    """Build the app with the command that these arguments name, and the help of all others.

    A script of --install-completion knows the options of all commands.
    """

    def versions() -> str:
        from ludus.cli.commands.doctor import RELEVANT_PACKAGES
        from ludus.data.run_folder import versions

        found = versions(*RELEVANT_PACKAGES)
        return "\n".join(f"{name} {version}" for name, version in found.items())

    words = arguments[1:] if arguments[:1] == [_COMPLETE] else arguments
    help_flags = ["--help", "-h", HELP_ALL]
    app = App(
        name="ludus",
        help=_DESCRIPTION,
        help_format="plaintext",
        help_epilogue=_ABOUT_HELP_ALL,
        help_flags=help_flags,
        version=versions,
        config=(apply_settings,),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    app.register_install_completion_command(name=INSTALL_COMPLETION)
    app["--help"].show = app["--version"].show = app[INSTALL_COMPLETION].show = False
    groups = {
        name: App(name=name, help=text, help_flags=help_flags) for name, text in GROUPS.items()
    }
    for order, (title, section) in enumerate(SECTIONS.items()):
        panel = Group(title, sort_key=order)
        for number, (path, (_, text)) in enumerate(section.items()):
            group, _, name = path.rpartition(" ")
            parent = groups.get(group, app)
            if group and group not in app:
                parent.group, parent.sort_key = panel, number
                app.command(parent)
            if INSTALL_COMPLETION in words or words[: len(path.split())] == path.split():
                command, more = find_command(path), _ABOUT_HELP_ALL
                if examples := examples_of(command):
                    more = f"Examples:\n\n{examples}\n\n{more}"
                parent.command(command, name=name, sort_key=number, help_epilogue=more)
            else:
                where = () if group else panel
                parent.command(App(name=name, help=text, group=where, sort_key=number))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run a command, and return its exit code."""
    from ludus.cli.display.console import print_error
    from ludus.cli.display.signals import EXIT_CODES, INTERRUPTED

    try:
        build_app(arguments)(expand_aliases(arguments))
    except CycloptsError as error:
        print_error(describe_usage_error(error))
        return 2
    except LudusError as error:
        # With several processes (torchrun) only rank 0 prints.
        if os.environ.get("RANK", "0") == "0":
            print_error(name_flags(str(error)))
        return 1
    except BrokenPipeError:
        # Nobody reads on: `ludus runs | head`. Python flushes stdout once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        print_error(f"{str(error.filename)[:100]} cannot be used: {error.strerror}.")
        return 1
    except KeyboardInterrupt as interrupt:
        print_error(str(interrupt) or "Interrupted.")
        return EXIT_CODES[INTERRUPTED]
    return 0


def expand_aliases(arguments: Sequence[str]) -> list[str]:
    """Replace other tools' names of options in these arguments, and complete bare options."""
    words, flags = list(arguments), dict[str, Flag]()
    for path in (path for section in SECTIONS.values() for path in section):
        if words[: len(path.split())] == path.split():
            flags |= flags_of(find_command(path))
    aliases, bare = dict[str, str](), dict[str, str]()
    for flag in flags.values():
        bare |= {flag.name: f"{flag.name}={flag.option.bare}"} if flag.option.bare else {}
        for alias in flag.option.aliases:
            name, equals, value = alias.partition("=")
            aliases[name] = flag.name + equals + value
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in aliases:
            words[index] = aliases[name] + equals + value
        elif word in bare and not _SETTING.match("".join(words[index + 1 : index + 2])):
            words[index] = bare[word]
    return words


def main() -> None:
    """The entry point."""
    arguments = sys.argv[1:]
    sys.exit(run(arguments or ["--help"]))
