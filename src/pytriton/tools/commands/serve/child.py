# SPDX-License-Identifier: Apache-2.0
"""A child process with the models of one state of the code, seen from its parent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.announcement import ways_to_end
from pytriton.base.package import IMPORT_FOLDER
from pytriton.tools.commands.serve.worker import CodeReport

if TYPE_CHECKING:
    from pytriton.base.announcement import Addresses
    from pytriton.tools.commands.serve.options import ServeOptions

# The folder of the package replaces the working directory at the start of `sys.path`, as a user's
# file may have the name of one of our modules.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.tools.commands.serve.worker import main; main(sys.argv[1:])"
)


class CodeProcess:
    """A process that imports the code, binds its models, and ends when it is told to."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = bytearray()

    def start(self, options: ServeOptions, addresses: Addresses, *, colours: bool) -> None:
        """Start the process."""
        document: dict[str, Any] = {
            "options": options.to_json(), "addresses": addresses, "colours": colours,
            "end": ways_to_end(),
        }  # fmt: skip
        self._socket, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER, str(descriptor)],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
            )
        # Not as an argument, which other users of the machine see: it has the access token.
        self._socket.sendall(json.dumps(document).encode() + b"\n")

    def fileno(self) -> int:
        """The socket, which can be read when there is news."""
        assert self._socket is not None
        return self._socket.fileno()

    def receive(self) -> CodeReport | None:
        """Returns the report if it is complete.

        Raises:
            EOFError: The process has ended.
        """
        assert self._socket is not None
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise EOFError
        self._received += piece
        if not self._received.endswith(b"\n"):
            return None
        report = msgspec.json.decode(bytes(self._received), type=CodeReport)
        self._received.clear()
        return report

    def ask_to_end(self) -> None:
        """Let it finish its requests and end."""
        assert self._socket is not None
        self._socket.close()

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        assert self._process is not None
        return self._process.poll() is not None

    def exit_code(self) -> int:
        """Waits for the end of the process, whose socket is closed already."""
        assert self._process is not None
        return self._process.wait()

    def end(self, timeout_s: float) -> None:
        """Wait for its end; one that takes too long is killed."""
        assert self._process is not None
        self.ask_to_end()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """End it at once, because its code is out of date before it was served."""
        assert self._process is not None
        self._process.kill()
        self.end(0)
