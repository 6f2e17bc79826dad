# SPDX-License-Identifier: Apache-2.0
"""`pytriton serve` as a process, whose output is read line by line."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

TIMEOUT_S = 180
PROGRAM = str(pathlib.Path(sys.executable).with_name("pytriton"))
FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


class Serving:
    """A running command."""

    def __init__(self, process):
        self.process = process
        self.seen = []
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text):
        """The next line that has the text."""
        while (line := self._lines.get(timeout=TIMEOUT_S)) is not None:
            self.seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} is not in {self.seen}")

    def started(self):
        """Waits for the announcement."""
        self.wait_for("To end it")
        (self.http,) = re.findall(r"^  HTTP +(\S+)$", "\n".join(self.seen), re.MULTILINE)
        return self

    def ask(self, model, route="generate", **members):
        request = urllib.request.Request(
            f"{self.http}/v2/models/{model}/{route}", json.dumps(members).encode()
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read().decode()

    def answer(self, model, **members):
        return json.loads(self.ask(model, **members))["output"]

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def serving(*arguments, cwd, **variables):
    # A shell starts background jobs with SIGINT ignored, and tests may be one.
    with subprocess.Popen(
        [PROGRAM, "serve", *arguments],
        cwd=cwd,
        env=os.environ | variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        try:
            yield Serving(process)
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
