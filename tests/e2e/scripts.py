# SPDX-License-Identifier: Apache-2.0
"""A user's serving script as a process: started, watched from outside, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Collection, Sequence

import psutil

from tests.e2e.http_client import is_port_free, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually

REPOSITORY = pathlib.Path(__file__).parents[2]
# It takes a fraction of a second, and more on a busy machine. What ends nothing but the 30 s that
# a server gives its last requests is too late.
GONE_WITHIN_S = 60.0
MARK = "PYTRITON_TEST_SCRIPT"  # in the environment of a script and of all that it starts

# How most users' scripts begin; what they serve follows.
PREAMBLE = """
import os, signal, sys, threading
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))

def identity(requests):
    return [{"y": request["x"]} for request in requests]
"""
SERVE = """
with Triton() as triton:
    triton.bind("Model", identity, [X], [Y])
    triton.serve()
"""
# Says when the script waits in `serve`, where an interrupt or the end of the server ends it in
# order: its model may be ready before `bind` returns.
SAY_WHEN_SERVING = """
from tests.run_page import main_thread_is_in

def say_when_serving():
    while not (main_thread_is_in("serve") and main_thread_is_in("wait")):
        threading.Event().wait(0.005)
    print("true", flush=True)

"""
SERVE_AND_SAY = f"""{SAY_WHEN_SERVING}
with Triton() as triton:
    triton.bind("Model", identity, [X], [Y])
    threading.Thread(target=say_when_serving, daemon=True).start()
    triton.serve()
"""


class Script:
    """A running script. Its files are in a folder of its own, and its processes carry a mark."""

    def __init__(
        self,
        folder: pathlib.Path,
        source: str,
        ports: dict[str, int],
        *,
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        quiet: bool = False,
    ) -> None:
        self.ports = ports
        self.http_port = ports["http_port"]
        self.temporary, self.home = folder / "tmp", folder / "home"
        self.temporary.mkdir()
        self.home.mkdir()
        self._path = folder / "script.py"
        self._path.write_text(PREAMBLE + textwrap.dedent(source))
        self._mark = uuid.uuid4().hex
        self._environment = {
            **os.environ,
            **{f"PYTRITON_TRITON_CONFIG_{name.upper()}": str(ports[name]) for name in ports},
            "PYTHONPATH": str(REPOSITORY),
            "PYTRITON_HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            MARK: self._mark,
            **(environment or {}),
        }
        self._prefix = prefix
        self._quiet = quiet
        self._made_at = time.time()

    def __enter__(self):
        # A test run in the background of a shell would otherwise hand its ignored SIGINT down.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                [*self._prefix, sys.executable, str(self._path)],
                cwd=self.home.parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if self._quiet else None,
            )
        finally:
            signal.signal(signal.SIGINT, previous)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself at this moment
                process.kill()
        self.process.wait()
        self.process.stdout.close()

    def await_ready(self, model: str = "Model") -> Script:
        """Wait until the model is served."""
        ready = eventually(
            lambda: is_ready(self.http_port, model) or self.process.poll() is not None
        )
        assert ready, "the script did not serve its model in time"
        assert self.process.poll() is None, f"the script ended with {self.process.returncode}"
        return self

    def say(self) -> object:
        """The next line that the script printed, read as JSON."""
        return json.loads(self.process.stdout.readline())

    def server_pids(self) -> list[int]:
        """The server processes among its family."""
        return [
            process.pid
            for process in self.family()
            if process.pid != self.process.pid and is_server(process)
        ]

    def family(self) -> list[psutil.Process]:
        """All living processes with the mark, whoever their parent is by now."""
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            # An age costs little and spares most of the machine's processes the rest; clocks of
            # the system count in hundredths of a second.
            return (
                process.create_time() > self._made_at - 1.0
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == self._mark
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def named_memory(self) -> set[str]:
        """Files with a name that the family has mapped, in the places where memory is shared."""
        places = ("/dev/shm/", f"{self.temporary}/", f"{self.home}/")
        return {
            mapping.path
            for process in self.family()
            for mapping in process.memory_maps()
            if mapping.path.startswith(places) and pathlib.Path(mapping.path).exists()
        }

    def leftovers(self, kept: Collection[str] = ()) -> dict[str, object]:
        """What a script that is gone should not leave: processes, listening ports, files."""
        found = {
            "processes": [str(process) for process in self.family()],
            "ports": [port for port in self.ports.values() if not is_port_free(port)],
            "files": [
                str(path)
                for place in (self.temporary, self.home)
                # Unlike `rglob`, it leaves out folders that are deleted meanwhile.
                for folder, folders, files in os.walk(place)
                for path in (pathlib.Path(folder, name) for name in (*folders, *files))
                if str(path) not in kept
            ],
        }
        return {kind: items for kind, items in found.items() if items}

    def await_gone(self, kept: Collection[str] = ()) -> dict[str, object]:
        """Wait until nothing but such files is left, not for ever; gives what else is left then."""
        eventually(lambda: not self.leftovers(kept), GONE_WITHIN_S)
        return self.leftovers(kept)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        return self.process.wait(deadline_s)


def is_server(process: psutil.Process) -> bool:
    """Whether it is a server that a `Triton` started, and is not gone by now."""
    try:
        return "--control-fd" in " ".join(process.cmdline())  # a title is one word
    except psutil.NoSuchProcess:
        return False


def own_servers() -> list[psutil.Process]:
    """Those of the test's own process, which a template may have forked for it."""
    return [each for each in psutil.Process().children(recursive=True) if is_server(each)]
