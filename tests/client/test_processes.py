# SPDX-License-Identifier: Apache-2.0
"""Clients and processes: forks, programs that end without closing, and what an import loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

TIMEOUT_S = 60

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


def run(source):
    process = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


@pytest.mark.parametrize("end", ["pass", "client.close(); futures.close()", "del client, futures"])
def test_fork_uses_an_http_client_and_is_refused_others(our_server, scheme, end):
    output = run(FORK.format(url=our_server.urls[scheme], end=end))

    if scheme == "http":
        assert "ModelClient [2.]" in output
    else:
        assert "gRPC connections do not survive it" in output
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


def test_program_that_ends_amid_an_inference_of_a_daemon_ends_quietly(our_server, scheme):
    source = f"""
import threading
import numpy as np
from pytriton.client import ModelClient
client = ModelClient({our_server.urls[scheme]!r}, "Slow", lazy_init=False)
started = threading.Event()
def infer():
    started.set()
    client.infer_sample(np.array([1.0], np.float32))
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
print([name for name in ("gevent", "aiohttp", "grpc") if name in sys.modules])
""")

    assert output.strip() == {None: "[]", "http": "['gevent']", "grpc": "['grpc']"}[scheme_in_use]
