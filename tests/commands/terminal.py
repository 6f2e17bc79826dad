# SPDX-License-Identifier: Apache-2.0
"""A program in a terminal of its own, whose screen tests read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte

from tests.e2e.waiting import DEADLINE_S


class Terminal:
    """Starts a program in a pseudo-terminal and follows what it draws."""

    def __init__(self, command: list[str], width: int = 80, height: int = 24) -> None:
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self._master, terminal = pty.openpty()
        self._set_size(width, height)
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
        }
        self.process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  no thread of this process holds a lock then
        )
        os.close(terminal)

    @property
    def text(self) -> str:
        """What is on the screen, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self._screen.resize(height, width)
        self._set_size(width, height)

    def wait_for(self, *texts: str, gone: str | None = None) -> str:
        """Wait until the screen has all texts, and does not have the one that is to be gone."""
        end = time.monotonic() + DEADLINE_S
        while not all(text in self.text for text in texts) or (gone and gone in self.text):
            assert time.monotonic() < end, f"expected {texts} on the screen:\n{self.text}"
            if not self._read(0.1):
                break
        assert all(text in self.text for text in texts), self.text
        return self.text

    def wait_for_end(self) -> int:
        """Read until the program has ended; returns its exit code."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.05)
        while self._read(0):
            pass
        assert self.process.poll() is not None, f"the program has not ended:\n{self.text}"
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self, timeout_s: float) -> bool:
        """Read what was drawn; returns whether the program may draw more."""
        readable, _, _ = select.select([self._master], [], [], timeout_s)
        if not readable:
            return timeout_s > 0
        with contextlib.suppress(OSError):  # the program has ended
            data = os.read(self._master, 65536)
            self._stream.feed(data)
            return bool(data)
        return False

    def _set_size(self, width: int, height: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)


def _take_terminal() -> None:
    """Let Ctrl-C of the terminal reach the program, also where tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
