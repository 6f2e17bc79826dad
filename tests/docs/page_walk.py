# SPDX-License-Identifier: Apache-2.0
"""Goes through a page as its reader would: writes its files, runs its commands, keeps its servers.

- A block with a title is a file of that name.
- A shell block is run. One that serves goes on until the next one that serves, or the page's end.
- A text block is what the command before it prints; `...` stands for anything on its line, and a
  line that is nothing else for any number of lines.
- `<http://localhost:...>` is opened, as in a browser.

All of it is as it stands, except that it uses ports of its own: addresses are changed, and programs
that stand in for `pytriton` and `tritonserver` add the options for these ports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence

from tests.e2e.http_client import is_ready
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.snippets import Snippet, blocks

DEFAULT_PORTS = ("8000", "8001", "8002")
NAMES = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
SERVING = ("pytriton serve ", "tritonserver ")
PROGRAMS = pathlib.Path(__file__).with_name("programs")
OPENED = "address"  # the language of what a reader opens in a browser
START_S = 2 * DEADLINE_S  # instances on Ray start slowly on a busy machine
END_S = 180


@dataclasses.dataclass
class Step:
    """A command of a page, what the page shows below it, and what came when it was run."""

    line: int
    command: str
    shown: str | None = None
    printed: str = ""
    status: int = 0

    @property
    def fits(self) -> bool:
        """Whether it went well, and printed what the page shows."""
        return self.status == 0 and self._is_as_shown()

    def _is_as_shown(self) -> bool:
        if self.shown is None:
            return True
        lines = self.shown.strip().split("\n")
        pattern = "\n".join(
            r"[\s\S]*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*")
            for line in lines
        )
        return re.fullmatch(pattern, self.printed.strip()) is not None


class PageWalk:
    """One walk through a page, in a folder.

    Args:
        page: the page.
        folder: where its files and commands are; it should be empty at first.
        ports: those for HTTP, gRPC and metrics.
        environment: more variables for the commands.
    """

    def __init__(
        self,
        page: pathlib.Path,
        folder: pathlib.Path,
        ports: Sequence[int],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.page = page
        self.folder = folder
        self.steps: list[Step] = []
        self._ports = list(ports)
        self._server: subprocess.Popen[str] | None = None
        self._log = folder / "server_output.txt"
        own = {f"PYTRITON_TRITON_CONFIG_{n}": str(p) for n, p in zip(NAMES, ports, strict=True)}
        self._environment = {
            **os.environ,
            **own,
            **(environment or {}),
            "WALK_PORTS": " ".join(map(str, ports)),
            "WALK_PYTHON": sys.executable,
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "PATH": f"{PROGRAMS}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def run(self) -> list[Step]:
        """Goes through the page up to a step that fails; gives its commands with their output."""
        with self._ending_server():
            page = _parts(self.page)
            for block, after in zip(page, [*page[1:], None], strict=True):
                is_output = after is not None and after.language == "text" and not after.title
                step = Step(block.line, block.text, after.text if is_output else None)
                if block.title:
                    self._write(block.title, block.text)
                elif block.language == OPENED:
                    self._open(step)
                elif block.language == "shell":
                    self._take(step)
                if self.steps and not self.steps[-1].fits:
                    break
        return self.steps

    def misfits(self) -> list[str]:
        """What did not go as the page says, for a message."""
        return [
            f"{self.page.name}:{step.line}: {step.command}-> {step.status}\n{step.printed}"
            for step in self.steps
            if not step.fits
        ]

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._on_our_ports(text))

    def _open(self, step: Step) -> None:
        self.steps.append(step)
        step.shown = None
        try:
            address = self._on_our_ports(step.command)
            request = urllib.request.Request(address, headers={"Accept": "text/html"})
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as page:
                step.printed = page.read().decode()
        except OSError as error:  # the step of the server says why
            step.printed = str(error)
        step.status = 0 if "<html" in step.printed else 1

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        if self._serves(step.command):
            self._serve(step)
        elif step.shown is None:
            self._run(step)
        else:  # until a file that was changed is served
            eventually(lambda: self._run(step).fits)

    def _serves(self, command: str) -> bool:
        program, _, file = command.strip().partition(" ")
        if program == "python" and (self.folder / file).is_file():
            return ".serve()" in (self.folder / file).read_text()
        return command.startswith(SERVING)

    def _serve(self, step: Step) -> None:
        self._end_server()
        self._log.write_text("")
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                ["bash", "-c", f"exec {self._on_our_ports(step.command)}"],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        server = self._server
        eventually(lambda: server.poll() is not None or self._is_ready(step.command), START_S)
        step.status = server.poll() or 0
        eventually(lambda: self._read_log(step).fits)

    def _is_ready(self, command: str) -> bool:
        if "--tls-cert" in command:  # only those who trust the certificate can ask
            return "Started Metrics" in self._log.read_text()
        return is_ready(self._ports[0])

    def _read_log(self, step: Step) -> Step:
        step.printed = self._log.read_text()
        return step

    def _run(self, step: Step) -> Step:
        command = ["timeout", str(DEADLINE_S), "bash", "-euo", "pipefail", "-c"]
        # Into a file: a pipe would have no end while a process that the command left behind has it.
        with tempfile.TemporaryFile("w+") as printed:
            step.status = subprocess.run(
                [*command, self._on_our_ports(step.command)],
                cwd=self.folder,
                env=self._environment,
                check=False,
                stdout=printed,
                stderr=subprocess.STDOUT,
            ).returncode
            printed.seek(0)
            step.printed = printed.read()
        if step.status == 0:
            for folder in re.findall(r"^cd (\S+)$", step.command, re.MULTILINE):
                self.folder /= folder  # each block has a shell of its own
        return step

    def _on_our_ports(self, text: str) -> str:
        for default, port in zip(DEFAULT_PORTS, self._ports, strict=True):
            for host in ("localhost", "127.0.0.1"):
                text = text.replace(f"{host}:{default}", f"127.0.0.1:{port}")
        return text

    @contextlib.contextmanager
    def _ending_server(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._end_server()

    def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is None or server.poll() is not None:
            return
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(END_S)
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()


def _parts(page: pathlib.Path) -> list[Snippet]:
    """The blocks and addresses of a page that matter here, in its order."""
    found = [block for block in blocks(page) if block.title or block.language in ("shell", "text")]
    addresses = [
        Snippet(page.name, number, OPENED, address)
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        for address in re.findall(r"<(http://localhost:[^>]*)>", line)
    ]
    return sorted([*found, *addresses], key=lambda part: part.line)
