# SPDX-License-Identifier: Apache-2.0
"""Clients and processes: forks, programs that end without closing, and what an import loads."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

TIMEOUT_S = 180

FORK = """
import os, sys, warnings
import numpy as np
from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientClosedError

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
one = np.ones(1, np.float32)
client = ModelClient({url!r}, "AddSub")
futures = FuturesModelClient({url!r}, "AddSub")
assert client.infer_sample(one, one)["add"] == 2
assert futures.infer_sample(one, one).result()["add"] == 2
child = os.fork()
if child == 0:
    for use in (client.infer_sample, futures.infer_sample):
        try:
            print(use.__self__.__class__.__name__, use(one, one)["add"])
        except PyTritonClientClosedError as error:
            print(error)
    {end}
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))
future = futures.infer_sample(one, one)
print("parent", client.infer_sample(one, one)["add"], future.result()["add"])
"""


def run(source, *options):
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *options, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it then says where its threads are
            output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    return output


@pytest.mark.parametrize("end", ["pass", "client.close(); futures.close()", "del client, futures"])
def test_fork_uses_an_http_client_and_is_refused_others(our_server, scheme, end):
    output = run(FORK.format(url=our_server.urls[scheme], end=end))

    if scheme == "http":
        assert "ModelClient [2.]" in output
    else:
        assert "which its connections do not survive" in output
    assert "does not have its threads" in output
    assert "child 0" in output
    assert "parent [2.] [2.]" in output


def test_program_that_forgets_to_close_ends_quietly(our_server, scheme):
    source = f"""
import numpy as np
from pytriton.client import ModelClient
client = ModelClient({our_server.urls[scheme]!r}, "AddSub")
print(client.infer_sample(np.ones(1, np.float32), np.ones(1, np.float32))["add"])
"""
    assert run(source) == "[2.]\n"


def test_program_that_ends_amid_an_inference_of_a_daemon_ends_quietly(our_server, scheme, gate):
    source = f"""
import threading
import numpy as np
from pytriton.client import ModelClient
client = ModelClient({our_server.urls[scheme]!r}, "Gated", lazy_init=False)
started = threading.Event()
def infer():
    started.set()
    client.infer_sample(np.array([{gate.number}], np.int32))
threading.excepthook = lambda problem: None
threading.Thread(target=infer, daemon=True).start()
started.wait()
"""
    assert run(source) == ""


@pytest.mark.parametrize("scheme_in_use", [None, "http", "grpc"])
def test_only_the_protocol_in_use_is_loaded(scheme_in_use):
    make = f"ModelClient('{scheme_in_use}://localhost', 'Model')" if scheme_in_use else ""
    output = run(f"""
import sys
from pytriton.client import *
{make}
print([name for name in ("tritonclient", "gevent", "aiohttp", "grpc") if name in sys.modules])
""")

    assert output.strip() == {None: "[]", "http": "[]", "grpc": "['grpc']"}[scheme_in_use]


PROLOGUE = """
import asyncio, gc, os, warnings
os.environ["GRPC_VERBOSITY"] = "ERROR"  # it tells of forks
import numpy as np
from pytriton.client import *
from pytriton.client.exceptions import PyTritonClientClosedError

one = np.ones(1, np.float32)

async def infer():
    client = AsyncioModelClient({url!r}, "AddSub")
    await client.infer_sample(one, one)
    return client
"""

# None of them closes what it uses, or not in the usual way.
ENDS = {
    "clients in cycles": """
for kind in (ModelClient, FuturesModelClient):
    client = kind({url!r}, "AddSub")
    client.infer_sample(one, one)
    client.itself = client
    del client
    gc.collect()
gc.disable()
client = ModelClient({url!r}, "AddSub", lazy_init=False)
client.itself = client
del client
""",
    "requests in progress": """
client = FuturesModelClient({url!r}, "AddSub")
futures = [client.infer_sample(one, one) for _ in range(30)]
""",
    "asyncio clients": """
asyncio.run(asyncio.wait_for(infer(), 60))
client = AsyncioModelClient({url!r}, "AddSub")
client = asyncio.run(infer())
gc.collect()
asyncio.run(client.close())
asyncio.run(client.close())
left = asyncio.run(infer())
""",
    "asyncio client in a fork": """
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
client = asyncio.run(infer())
pid = os.fork()
if pid == 0:
    try:
        asyncio.run(client.infer_sample(one, one))
    except PyTritonClientClosedError:
        asyncio.run(client.close())
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_program_ends_quietly_although_a_client_is_not_closed(our_server, scheme, end):
    source = (PROLOGUE + ENDS[end]).format(url=our_server.urls[scheme])

    assert run(source, "-W", "error") == ""


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("end", ["", "del client, stream; gc.collect()", "stream.all = stream"])
def test_program_ends_quietly_amid_a_stream(our_server, read, end):
    source = f"""
import gc
import numpy as np
from pytriton.client import DecoupledModelClient
client = DecoupledModelClient({our_server.urls["grpc"]!r}, "Counter")
stream = client.infer_sample(np.array([1000], np.int32))
for _ in range({read}):
    next(stream)
{end}
"""
    assert run(source, "-W", "error") == ""


@pytest.mark.parametrize(
    "end, output",
    [("", ""), ("del stream; [thread.join() for thread in threads]", "destroyed\n")],
)
def test_call_that_threads_may_use_is_not_destroyed_when_the_program_ends(end, output):
    # Real threads hold a lock of a call at that moment once in hundreds of programs.
    source = f"""
import threading, time
from pytriton.client.decoupled_client import ResponseStream
class Call:
    def __iter__(self):
        return iter(())
    def cancel(self):
        pass
    def __del__(self):
        print("destroyed", flush=True)
stream = ResponseStream(Call(), 1.0, time.monotonic())
threads = [t for t in threading.enumerate() if t.name == "pytriton-stream"]
{end}
"""
    assert run(source) == output


def test_functions_called_at_exit_still_have_their_clients(our_server, scheme):
    source = f"""
import atexit
import numpy as np
from pytriton.client import ModelClient
one = np.ones(1, np.float32)
@atexit.register
def say_goodbye():
    with ModelClient.from_existing_client(client) as another:
        print(client.infer_sample(one, one)["add"], another.infer_sample(one, one)["sub"])
client = ModelClient({our_server.urls[scheme]!r}, "AddSub")
client.infer_sample(one, one)
"""
    assert run(source, "-W", "error") == "[2.] [0.]\n"


def test_client_that_the_end_of_the_program_closed_says_so(our_server, scheme):
    source = f"""
import atexit
@atexit.register
def say_goodbye():
    try:
        client.infer_sample(one, one)
    except PyTritonClientClosedError as error:
        print(error)
import numpy as np
from pytriton.client import ModelClient
from pytriton.client.exceptions import PyTritonClientClosedError
one = np.ones(1, np.float32)
client = ModelClient({our_server.urls[scheme]!r}, "AddSub", lazy_init=False)
"""
    assert run(source, "-W", "error") == "ModelClient is closed\n"
