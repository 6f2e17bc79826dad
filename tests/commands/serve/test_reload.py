# SPDX-License-Identifier: Apache-2.0
"""`pytriton serve --reload`: files are edited while clients ask."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.commands.serve.serving import FREE_PORTS, TIMEOUT_S, serving
from tests.e2e.http_client import call, is_ready
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports

pytestmark = pytest.mark.e2e

SOURCE = """
import pathlib
import time
from helper import VERSION

def version(waits: bool = False) -> str:
    if waits:
        pathlib.Path("begun").touch()
        while not pathlib.Path("free").exists():
            time.sleep(0.01)
    return VERSION
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "code.py").write_text(SOURCE)
    (tmp_path / "helper.py").write_text("VERSION = 'one'\n")
    return tmp_path


def wait_until(is_so):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Asking:
    """Asks without a pause in a thread, and keeps the answers and errors."""

    def __init__(self, server):
        self.answers, self.errors = [], []
        self._server = server
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self):
        while not self._stopped.is_set():
            try:
                self.answers.append(self._server.answer("version"))
            except OSError as error:  # noqa: PERF203  each failure counts
                self.errors.append(error)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()


def test_server_is_ready_when_the_first_models_are(folder):
    (folder / "helper.py").write_text("raise RuntimeError('broken')\n")
    ports = free_ports(3)
    options = [
        f"--{name}-port={port}"
        for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)
    ]
    with serving("code.py", "--reload", *options, cwd=folder) as server:
        server.wait_for("This cannot be served. Save a file to try again")
        refusal = call(ports[0], "/v2/health/ready")

        (folder / "helper.py").write_text("VERSION = 'one'\n")
        server.started()

        assert (refusal.status, refusal.error) == (
            400,
            "Server is not ready: the first models are not served yet",
        )
        assert eventually(lambda: is_ready(ports[0]))


def test_changed_code_is_served_without_a_failed_request(folder):
    with serving("code.py", "--reload", "--instances=2", *FREE_PORTS, cwd=folder) as server:
        server.started()
        slow = []
        under_way = threading.Thread(
            target=lambda: slow.append(server.answer("version", waits=True))
        )
        under_way.start()
        wait_until((folder / "begun").exists)
        with Asking(server) as asking:
            (folder / "helper.py").write_text("VERSION = 'two'\n")
            server.wait_for("helper.py changed")
            server.wait_for("Serving the new code: version")
            assert server.answer("version") == "two"
            (folder / "free").touch()
            under_way.join()

            (folder / "helper.py").write_text("VERSION = (\n")
            server.wait_for("SyntaxError: '(' was never closed")
            server.wait_for("The new code cannot be served. The models are those of before")
            assert server.answer("version") == "two"

            (folder / "code.py").write_text(SOURCE + "\ndef more(a: int) -> int:\n    return a\n")
            (folder / "helper.py").write_text("VERSION = 'three'\n")
            server.wait_for("Serving the new code: version, more")
            assert server.answer("version") == "three"
            assert server.answer("more", a=5) == 5

        assert server.end(signal.SIGTERM) == 0
        server.wait_for("Ended")

    assert asking.errors == []
    assert set(asking.answers) <= {"one", "two", "three"}
    assert slow == ["one"]


def test_code_that_fails_first_is_tried_again(folder):
    (folder / "helper.py").write_text("raise SystemExit(3)\n")
    with serving("code.py", "--reload", *FREE_PORTS, cwd=folder) as server:
        server.wait_for("The code ended the program with exit code 3.")
        server.wait_for("This cannot be served. Save a file to try again")

        (folder / "helper.py").write_text("import os\nVERSION = 'one'\n")
        server.started()
        assert server.answer("version") == "one"

        (folder / "code.py").write_text(
            "import os\n" + SOURCE.replace("return VERSION", "os._exit(9)")
        )
        server.wait_for("Serving the new code: version")
        with pytest.raises(OSError, match="500"):
            server.answer("version")
        server.wait_for("The process with the models ended with exit code 9")

        (folder / "code.py").write_text(SOURCE)
        server.wait_for("Serving the new code: version")
        assert server.answer("version") == "one"

        # A service manager sends the signal to all processes of a service.
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.process.wait(TIMEOUT_S) == 0
        server.wait_for("Ended")
        assert "ended with exit code" not in "".join(server.seen[-2:])
