# SPDX-License-Identifier: Apache-2.0
"""Scripts in processes of their own: a crash of the script, and a server run in a thread."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.scripts import SERVE

pytestmark = pytest.mark.e2e

SERVE_IN_A_THREAD = """
signalled = threading.Event()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: signalled.set())

triton = Triton()
triton.bind("Model", identity, [X], [Y])
thread = threading.Thread(target=triton.serve, daemon=True)
thread.start()
signalled.wait()
assert triton.stop()
thread.join(180)
print("true" if not thread.is_alive() else "false", flush=True)
"""


def test_script_that_crashes_takes_its_server_along(start_script):
    script = start_script(SERVE, quiet=True).await_ready()
    script.process.send_signal(signal.SIGSEGV)

    assert script.exit_code() == -signal.SIGSEGV
    assert script.await_gone() == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda item: item.name)
def test_server_in_a_thread_is_stopped_by_the_handler_of_the_script(start_script, number):
    script = start_script(SERVE_IN_A_THREAD).await_ready()
    script.process.send_signal(number)

    assert script.say() is True
    assert script.exit_code() == 0
    assert script.await_gone() == {}
