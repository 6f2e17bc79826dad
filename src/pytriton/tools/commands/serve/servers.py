# SPDX-License-Identifier: Apache-2.0
"""The server of the command, its messages, and the connection of a process that binds models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.announcement import Addresses, Announced, announcement, say, says_in_colour
from pytriton.base.security import TritonSecurityConfig
from pytriton.triton import RemoteTriton, Triton
from pytriton.utils.terminal import Colour, paint

if TYPE_CHECKING:
    from pytriton.tools.commands.serve.options import ServeOptions


class CommandServer(Triton):
    """A server whose log shows only what the user asked for, and whose advice names options."""

    def __init__(self, options: ServeOptions) -> None:
        super().__init__(
            config=options.server_config(),
            security_config=TritonSecurityConfig(access_token=options.access_token),
        )
        self._log_level = options.log_level

    def launch(self) -> None:
        """Start it without models, which another process binds; it is not ready before."""
        self._launch(awaits_models=True)

    def _report_serving(self) -> None:
        if self._models:  # otherwise the process that binds them reports
            super()._report_serving()

    @property
    def addresses(self) -> Addresses:
        """Its addresses for clients on this machine; that of the page has the token.

        A browser does not send what follows the hash.
        """
        addresses = self._addresses()
        token = self._config.page_token or self.get_access_token()
        if not addresses.page or not token:
            return addresses
        return addresses._replace(page=f"{addresses.page}#token={token}")

    def announcement(self, *, colours: bool) -> list[str]:
        """Returns the lines that say what is served and where."""
        return _announcement(self, self.addresses, colours=colours)

    def _server_settings(self) -> dict[str, Any]:
        return super()._server_settings() | {"log_info": self._log_level != "warning"}

    @staticmethod
    def _port_hint(field: str) -> str:
        option = f"--{field.replace('_', '-')}"
        return (
            f"Stop the program that uses it, or choose another port with {option}; 0 takes a free "
            "one."
        )


class CommandBinder(RemoteTriton):
    """Binds models to the server of the command from another process."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__(url=addresses.http)
        self._server_addresses = addresses

    def announcement(self, *, colours: bool, end: str) -> list[str]:
        """Returns the lines that say what is served and where, and how it is ended."""
        return _announcement(self, self._server_addresses, colours=colours, end=end)


def _announcement(
    triton: CommandServer | CommandBinder, addresses: Addresses, *, colours: bool, end: str = ""
) -> list[str]:
    models = [Announced(model.config, model.examples) for model in triton._models.values()]  # noqa: SLF001  of the two classes above
    return announcement(addresses, models, colours=colours, end=end)


class ServeScreen:
    """Writes lines."""

    def __init__(self) -> None:
        self.colours = says_in_colour()

    def lines(self, lines: Sequence[str]) -> None:
        """Write lines as they are."""
        say(lines)

    def note(self, text: str) -> None:
        """Write a line that is less important than others."""
        self._write(text, Colour.DIM)

    def left_out(self, skipped: Sequence[str], forgotten: Sequence[str]) -> None:
        """Write what is not served, with the reasons; what was probably forgotten is a warning."""
        for reason in skipped:
            self.note(f"Not served: {reason}")
        for reason in forgotten:
            self._write(f"Not served: {reason}", Colour.YELLOW)

    def good(self, text: str) -> None:
        """Write a line on something that worked."""
        self._write(text, Colour.GREEN)

    def bad(self, text: str) -> None:
        """Write a line on something that failed."""
        self._write(text, Colour.RED)

    def _write(self, text: str, colour: Colour) -> None:
        say([paint(text, colour) if self.colours else text])
