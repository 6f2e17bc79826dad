# SPDX-License-Identifier: Apache-2.0
"""A process that bound models ends, in every way that there is: its models go, the others stay."""

from __future__ import annotations

import contextlib
import pathlib
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.model_config import Tensor
from tests.e2e.binders import (
    DIES,
    ENDS,
    HANGS,
    SERVE_AND_SAY,
    binders_of,
    server_process,
)
from tests.e2e.http_client import InferFailedError, infer, is_ready
from tests.e2e.scripts import GONE_WITHIN_S
from tests.e2e.waiting import eventually

ROWS = [[Tensor(name=name, dtype=np.float32, shape=(-1,))] for name in "xy"]

# A program, what makes it end (a value to infer with, or a signal), and its exit code.
ENDINGS = {
    "its context": ("with triton: bind(); over.wait()", ENDS, 0),
    "stop": ("triton.connect(); bind(); over.wait(); triton.stop(); print()", ENDS, 0),
    "exit without stop": ("triton.connect(); bind(); over.wait()", ENDS, 0),
    "sys.exit": ("triton.connect(); bind(); over.wait(); sys.exit(3)", ENDS, 3),
    "exception": ("with triton: bind(); over.wait(); raise SystemExit('a bug')", ENDS, 1),
    "os._exit in the callable": ("with triton: bind(); triton.serve()", DIES, 7),
    "SIGINT": (SERVE_AND_SAY, signal.SIGINT, 0),
    "SIGTERM": ("with triton: bind(); triton.serve()", signal.SIGTERM, -signal.SIGTERM),
    "SIGKILL": ("with triton: bind(); triton.serve()", signal.SIGKILL, -signal.SIGKILL),
}


@pytest.fixture
def binders(host, start_script):
    host.bind(lambda requests: [{"y": r["x"]} for r in requests], name="Local", max_batch_size=1)
    return binders_of(host.triton, host.port, start_script)


def ask(port, value, model="Remote"):
    return infer(port, model, {"x": np.full((1, 1), value, np.float32)})["y"].item()


def ask_alone(port, value, model="Remote"):
    """Like `ask`; the error's text where there is one."""
    try:
        return ask(port, value, model)
    except InferFailedError as error:
        return error.text


@pytest.mark.parametrize("ending", ENDINGS)
def test_models_go_with_their_process(binders, host, ending):
    source, cause, code = ENDINGS[ending]
    script = binders.start_ready(source, quiet=True)
    assert ask(host.port, 4) == 8
    if isinstance(cause, signal.Signals):
        script.process.send_signal(cause)
    else:
        ask_alone(host.port, cause)

    assert script.exit_code() == code
    assert eventually(lambda: not is_ready(host.port, "Remote"), GONE_WITHIN_S)
    assert ask_alone(host.port, 4) == "Request for unknown model: 'Remote' is not found"
    assert ask(host.port, 4, "Local") == 4
    assert is_ready(host.port)


def test_killed_process_answers_what_it_had_with_an_error(binders, host):
    script = binders.start_ready()
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(ask_alone, host.port, HANGS) for _ in range(3)]
        assert script.process.stdout.readline() == b"hanging\n"
        script.process.kill()
        texts = sorted(answer.result() for answer in answers)

    assert "the instance is gone, its process ended" in texts[0]
    assert all(text.startswith("Request for unknown model: 'Remote'") for text in texts[1:])


def test_stopped_process_holds_nobody_else_up(binders, host):
    script = binders.start_ready(
        """
        from pytriton.model_config.common import QueuePolicy
        policy = QueuePolicy(default_timeout_microseconds=20_000)
        with triton:
            bind(batcher=DynamicBatcher(default_queue_policy=policy))
            triton.serve()
        """
    )
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask_alone, host.port, HANGS)
        assert script.process.stdout.readline() == b"hanging\n"
        script.process.send_signal(signal.SIGSTOP)

        assert ask_alone(host.port, 1) == "Request timeout expired"
        assert ask(host.port, 3, "Local") == 3
        assert not running.done()
        script.process.kill()


def test_stopped_process_goes_on_where_it_was(binders, host):
    script = binders.start_ready()
    script.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, host.port, 4)
        assert ask(host.port, 3, "Local") == 3
        script.process.send_signal(signal.SIGCONT)

        assert answer.result() == 8


def test_name_is_free_at_once_although_its_process_does_not_move(binders, host):
    script = binders.start_ready()
    script.process.send_signal(signal.SIGSTOP)
    with binders.here() as second:
        second.bind("Remote", lambda requests: [{"y": -r["x"]} for r in requests], *ROWS)
        assert ask(host.port, 4) == -4
    script.process.kill()


def test_children_do_not_keep_the_models_of_a_killed_process(binders, host):
    script = binders.start_ready(
        """
        import ctypes, multiprocessing
        with triton:
            bind()
            context = multiprocessing.get_context("fork")
            context.Process(target=time.sleep, args=(600,), daemon=True).start()
            if ctypes.CDLL(None).fork() == 0:  # no hook of Python's closes anything here
                while True:
                    signal.pause()
            triton.serve()
        """
    )
    assert eventually(lambda: len(script.family()) == 3)
    script.process.kill()
    script.process.wait()

    assert eventually(lambda: not is_ready(host.port, "Remote"), GONE_WITHIN_S)
    assert len(script.family()) == 2


def test_child_that_exits_takes_nothing_away(binders, host, tmp_path):
    workspace = tmp_path / "workspace"
    script = binders.start_ready(
        f"""
        triton = RemoteTriton(os.environ["SERVER_URL"], {str(workspace)!r}, triton._access_token)
        with triton:
            bind()
            child = os.fork()
            if child == 0:
                sys.exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            triton.serve()
        """
    )

    assert script.say() == 5
    assert ask(host.port, 4) == 8
    assert workspace.exists()


def test_child_is_told_that_it_cannot_bind_for_its_parent(binders, host):
    script = binders.start_ready(
        """
        import json
        with triton:
            bind()
            if os.fork() == 0:
                try:
                    bind("FromChild")
                except Exception as error:
                    print(json.dumps(str(error)), flush=True)
                os._exit(0)
            triton.serve()
        """
    )

    assert "a forked process needs its own object" in script.say()
    assert ask(host.port, 4) == 8


def test_server_keeps_nothing_of_those_who_left(binders, host):
    server = server_process()
    for _ in range(3):  # what is kept for good is made in the first rounds
        script = binders.start_ready()
        script.process.kill()
        assert eventually(lambda: not is_ready(host.port, "Remote"))
        before = server.num_fds()
    script = binders.start_ready()
    script.process.kill()

    assert eventually(lambda: server.num_fds() <= before)


def shared_memory(server):
    """The pieces of memory that a server shares, each of which has a descriptor."""
    pieces = set()
    for descriptor in pathlib.Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if "memfd:pytriton" in str(descriptor.readlink()):
                pieces.add(descriptor.stat().st_ino)
    return pieces


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").exists(), reason="needs /proc")
def test_memory_of_a_model_goes_with_it(binders, host):
    server = server_process()
    others = shared_memory(server)  # some of them may go meanwhile, with who left before
    with binders.here() as remote:
        remote.bind("Large", lambda requests: [{"y": -r["x"]} for r in requests], *ROWS)
        assert (
            infer(host.port, "Large", {"x": np.ones((1, 1 << 20), np.float32)})["y"] == -1
        ).all()
        pieces = shared_memory(server) - others

    assert pieces
    assert eventually(lambda: not pieces & shared_memory(server))
