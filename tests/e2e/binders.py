# SPDX-License-Identifier: Apache-2.0
"""Processes that bind models into the server of a test."""

from __future__ import annotations

import textwrap

import psutil

from pytriton.triton import RemoteTriton, Triton
from tests.e2e.http_client import is_ready
from tests.e2e.scripts import SAY_WHEN_SERVING, Script, own_servers
from tests.e2e.waiting import eventually

# The model doubles what it is given; some values have it do something else.
_BEGINNING = """
import time
from pytriton.triton import RemoteTriton

DIES, ENDS, HANGS = 101, 102, 103
over = threading.Event()

@batch
def double(x):
    if x[0, 0] == DIES:
        os._exit(7)
    if x[0, 0] == ENDS:
        over.set()
    if x[0, 0] == HANGS:
        print("hanging", flush=True)
        threading.Event().wait()
    return {"y": 2 * x}

triton = RemoteTriton(os.environ["SERVER_URL"], access_token=os.environ["SERVER_TOKEN"])
def bind(name=os.environ["MODEL"], **config):
    triton.bind(name, double, [X], [Y], config=ModelConfig(max_batch_size=1, **config))
"""
SERVE = """
with triton:
    bind()
    triton.serve()
"""
SERVE_AND_SAY = f"""{SAY_WHEN_SERVING}
with triton:
    bind()
    threading.Thread(target=say_when_serving, daemon=True).start()
    triton.serve()
"""
DIES, ENDS, HANGS = 101, 102, 103


class Binders:
    """Starts processes that bind a model called as they say into one server."""

    def __init__(self, start_script, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._start_script = start_script

    def start(self, source: str = SERVE, model: str = "Remote", **settings) -> Script:
        """A script; `triton` and `bind` are there already."""
        environment = {
            "SERVER_URL": self.url,
            "SERVER_TOKEN": self.token or "",
            "MODEL": model,
            **settings.pop("environment", {}),
        }
        source = _BEGINNING + textwrap.dedent(source)
        return self._start_script(source, environment=environment, **settings)

    def start_ready(self, source: str = SERVE_AND_SAY, model: str = "Remote", **settings) -> Script:
        """Like `start`, and wait until the model is served; by default, also for `serve`."""
        script = self.start(source, model, **settings)
        port = int(self.url.rpartition(":")[2])
        ready = eventually(lambda: is_ready(port, model) or script.process.poll() is not None)
        assert ready, "the model was not served in time"
        assert script.process.poll() is None, f"it ended with {script.process.returncode}"
        assert source is not SERVE_AND_SAY or script.say() is True
        return script

    def here(self) -> RemoteTriton:
        """One in the test's own process."""
        return RemoteTriton(self.url, access_token=self.token)


def server_process() -> psutil.Process:
    """The server that this process started last; fixtures of other tests may have theirs."""
    return max(own_servers(), key=psutil.Process.create_time)


def binders_of(triton: Triton, http_port: int, start_script) -> Binders:
    """Of a server that the test runs."""
    return Binders(start_script, f"localhost:{http_port}", triton.get_access_token())
