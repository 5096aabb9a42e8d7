"""`--debug` of both command lines: before a command's name, and behind it; their list of commands.

Errors say to run a command with it, and people add it at the end of what they ran. In the list the
first paragraph of each command's help is whole: click would cut it off after a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class DebugGroup(click.Group):
    """Commands that take --debug behind their names as well.

    `say_more` is called for a command that has it there; `debug_help` is its help.
    """

    def __init__(
        self, *given: Any, say_more: Callable[[], None], debug_help: str, **options: Any
    ) -> None:
        self._say_more, self._debug_help = say_more, debug_help
        super().__init__(*given, **options)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, with the option."""

        def noticed(_context: click.Context, _: click.Parameter, is_on: bool) -> None:
            if is_on:
                self._say_more()

        option = click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=noticed,
            help=self._debug_help,
        )
        cmd.params.append(option)
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, with the first paragraph of the help of each."""
        helps = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, " ".join(text.partition("\n\n")[0].split())) for name, text in helps]
            )
