# SPDX-License-Identifier: Apache-2.0
"""How servers in this process start and end, also if nobody stops them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import psutil
import pytest

import tritonserver
from pytriton.inprocess import shared_loop
from pytriton.inprocess.shared_loop import SharedLoop
from tests.e2e.waiting import DEADLINE_S
from tests.inprocess import models
from tests.repository_e2e.model_files import write_model
from tritonserver import Server

INPUTS = {"INPUT0": np.array([2], np.float32)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "identity", models.identity())
    write_model(folder / "patient", models.PATIENT)
    write_model(folder / "counting", models.COUNTING)
    return folder


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def run_program(text: str, repository) -> subprocess.CompletedProcess[str]:
    """Run a program with a started `server`; it ends by itself."""
    start = f"""
        import os, signal, sys, threading, time
        import numpy as np
        import tritonserver
        # It is ignored by what a shell starts in the background, tests for example.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        INPUTS = {{"INPUT0": np.array([2], np.float32)}}
        WAIT = {{"WAIT": np.array([1], np.int32)}}
        server = tritonserver.Server(model_repository={str(repository)!r}).start()
        identity, patient = server.model("identity"), server.model("patient")
        for _ in range(10):
            list(identity.infer(inputs=INPUTS))
    """
    program = textwrap.dedent(start) + textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_server_starts_again_after_its_end(repository):
    server = Server(model_repository=str(repository))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for method in (server.live, server.models, server.stop, server.metrics):
        with pytest.raises(tritonserver.InvalidArgumentError, match="Server not started"):
            method()
    for _ in range(2):
        assert server.start() is server
        model = server.model("identity")
        assert len(list(model.infer(inputs=INPUTS))) == 1
        with pytest.raises(tritonserver.InvalidArgumentError, match="Server already started"):
            server.start()
        server.stop()

    with pytest.raises(tritonserver.InvalidArgumentError, match="Server not started"):
        model.infer(inputs=INPUTS)
    assert handlers == {number: signal.getsignal(number) for number in handlers}


def test_server_that_cannot_start_says_why_and_leaves_nothing(tmp_path):
    write_model(tmp_path / "broken", {**models.identity(), "1/model.py": "import no_such_module"})
    before = set(psutil.Process().children(recursive=True))
    threads = threading.active_count()

    with pytest.raises(tritonserver.InternalError, match="no_such_module"):
        Server(model_repository=str(tmp_path)).start()
    with pytest.raises(tritonserver.InternalError, match="nowhere"):
        Server(model_repository=str(tmp_path / "nowhere")).start()
    with pytest.raises(tritonserver.InvalidArgumentError, match="cache"):
        Server(model_repository=str(tmp_path), cache_config={"redis": {"a": 1}}).start()
    with pytest.raises(TypeError, match=r"Options.server_id must be a str, got int: 3"):
        Server(model_repository=str(tmp_path), server_id=3).start()
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)
    until(lambda: threading.active_count() <= threads)


def test_server_without_its_models_may_run(tmp_path):
    write_model(tmp_path / "broken", {**models.identity(), "1/model.py": "import no_such_module"})
    server = Server(model_repository=str(tmp_path), exit_on_error=False)

    with pytest.raises(tritonserver.UnavailableError, match="Timeout before ready"):
        server.start(wait_until_ready=True, polling_interval=0.01, timeout=0.05)
    assert "no_such_module" in server.models()["broken", 1].reason
    server.stop()


def test_two_servers_and_one_that_nobody_refers_to(repository):
    of_others = set(psutil.Process().children(recursive=True))
    first = Server(model_repository=str(repository)).start()
    second = Server(model_repository=str(repository)).start()
    assert len(list(second.model("identity").infer(inputs=INPUTS))) == 1
    workers = set(psutil.Process().children(recursive=True)) - of_others
    watch, engine = weakref.ref(second), second.engine
    del second
    gc.collect()

    assert watch() is None
    until(lambda: not engine.shared_loop._keeper.is_alive())
    until(lambda: sum(each.is_running() for each in workers) <= len(workers) // 2)
    assert len(list(first.model("identity").infer(inputs=INPUTS))) == 1
    first.stop()


def test_requests_end_when_the_server_stops(repository):
    server = Server(model_repository=str(repository), exit_timeout=0).start()
    responses = server.model("patient").infer(inputs={"WAIT": np.array([1], np.int32)})
    server.stop()

    with pytest.raises(tritonserver.TritonError):
        next(responses)


def test_responses_can_be_fetched_after_the_server_has_stopped(repository):
    """Also if the model was paused, because its caller fetched none."""
    server = Server(model_repository=str(repository), exit_timeout=0).start()
    sent = repository / "counting" / "1" / "sent"
    responses = server.model("counting").infer(
        inputs={"COUNT": np.array([400], np.int32)}, raise_on_error=False
    )
    counts = []
    until(sent.exists)
    until(lambda: counts.append(sent.read_text()) or counts[-30:].count(counts[-1]) == 30)
    server.stop()

    *_, last = responses
    assert last.final
    with pytest.raises(tritonserver.InvalidArgumentError, match="not started"):
        server.model("counting")


def test_what_is_posted_when_the_loop_ends_is_called():
    shared = SharedLoop()
    shared.start()
    begun, first, second, called = (threading.Event() for _ in range(4))
    shared.post(lambda: begun.set() or first.wait(DEADLINE_S))
    assert begun.wait(DEADLINE_S)
    shared.end()
    shared.post(second.wait, 20)  # the loop has been told to stop when it calls this
    first.set()
    until(lambda: not shared.loop._ready)
    shared.post(called.set)
    never = shared.begin(asyncio.Event().wait())
    second.set()
    shared.join()

    assert called.is_set()
    with pytest.raises(concurrent.futures.CancelledError):
        never.result(DEADLINE_S)
    with pytest.raises(RuntimeError, match="closed"):
        shared.post(called.set)


def test_log_is_written_only_if_the_program_wants_it(repository, tmp_path):
    quiet = run_program("server.stop()", repository)
    file = tmp_path / "log"
    server = Server(model_repository=str(repository), log_file=str(file), log_info=True).start()
    server.stop()

    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert "identity" in file.read_text()


def test_log_of_a_server_remains_when_another_one_stops(repository, tmp_path):
    files = [tmp_path / "first", tmp_path / "second"]
    first, second = (
        Server(model_repository=str(repository), log_file=str(file), log_info=True).start()
        for file in files
    )
    first.stop()
    before = files[1].read_text()
    second.stop()

    assert len(files[1].read_text()) > len(before)
    assert logging.getLogger("pytriton").level == logging.NOTSET


def test_program_may_end_without_stopping_its_server(repository):
    ended = run_program(
        """
        responses = patient.infer(inputs=WAIT)
        print(os.getpid(), flush=True)
        """,
        repository,
    )

    assert ended.returncode == 0
    assert ended.stderr == ""
    pid = int(ended.stdout)
    until(lambda: not [each for each in psutil.process_iter() if _ppid(each) == pid])


def _ppid(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def test_forked_child_leaves_the_server_alone(repository):
    ended = run_program(
        """
        import gc, pathlib, warnings
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
        responses = identity.infer(inputs=INPUTS)
        def watched():  # by selectors, which a child shares: what it takes away is gone here, too
            folders = pathlib.Path("/proc/self/fdinfo").glob("*")
            texts = [path.read_text() for path in folders if path.exists()]
            lines = "\\n".join(texts).split("\\n")
            return {line.split()[1] for line in lines if line.startswith("tfd:")}
        before = watched()
        child = os.fork()
        if child == 0:
            for call in (lambda: next(responses), lambda: identity.infer(inputs=INPUTS).__next__(),
                         server.ready, server.stop):
                try:
                    print(call())
                except tritonserver.TritonError as error:
                    print(error)
            del server, identity, patient, responses, call
            gc.collect()
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(len(list(responses)), len(list(identity.infer(inputs=INPUTS))))
        print(bool(before) or sys.platform != "linux", before <= watched(), server.ready())
        server.stop()
        """,
        repository,
    )

    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-3:] == ["7", "1 1", "True True True"]
    assert ended.stdout.count("forked") == 3


def test_forked_child_sends_nothing_to_the_workers_of_its_parent(repository):
    ended = run_program(
        """
        print(server.engine.shared_loop._is_parked)  # a caller runs the loop by now
        if os.fork() == 0:
            server.engine.core.engine.submit_validated = lambda *_, **__: print("sent")
            try:
                identity.infer(inputs=INPUTS)
            except tritonserver.UnavailableError as error:
                print(error)
            os._exit(sys.stdout.flush() or 0)
        os.wait()
        server.stop()
        """,
        repository,
    )

    expected = "the server belongs to the process that this one was forked from"
    assert ended.stdout.splitlines()[-1] == expected
    assert "sent" not in ended.stdout


def test_interrupt_ends_only_the_waiting(repository):
    ended = run_program(
        """
        for _ in range(3):
            responses = patient.infer(inputs=WAIT)
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                next(responses)
            except KeyboardInterrupt:
                print("interrupted", signal.getsignal(signal.SIGINT).__name__)
            responses.cancel()
            print(next(responses).final, len(list(identity.infer(inputs=INPUTS))))
        server.stop()
        """,
        repository,
    )

    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["interrupted default_int_handler", "True 1"] * 3


def test_interrupts_at_any_time_leave_the_server_whole(repository):
    ended = run_program(
        """
        import random
        seen = 0
        def interrupt():
            sent = 0
            while sent < 60 or seen <= 20:  # those that come before one is seen count once
                time.sleep(random.random() * 0.01)
                os.kill(os.getpid(), signal.SIGINT)
                sent += 1
        thread = threading.Thread(target=interrupt)
        while not seen:
            try:
                thread.start()
            except KeyboardInterrupt:
                seen += 1
            break
        while True:
            try:
                while thread.is_alive():
                    list(identity.infer(inputs=INPUTS))
                break
            except KeyboardInterrupt:
                seen += 1
        thread.join()
        print(seen > 20, [len(list(identity.infer(inputs=INPUTS))) for _ in range(5)])
        statistics = identity.statistics()["model_stats"][0]["inference_stats"]
        print(statistics["fail"]["count"])
        server.stop()
        """,
        repository,
    )

    # Python itself ignores an interrupt that comes while an iterator is being freed.
    ignored = "Exception ignored in: <function ResponseIterator.__del__"
    assert ended.stderr == "" or ended.stderr.startswith(ignored)
    assert ended.stdout.splitlines() == ["True [1, 1, 1, 1, 1]", "0"]


def test_handler_that_raises_is_never_run_inside_the_engine(repository):
    ended = run_program(
        """
        class Late(Exception): pass
        def alarm(number, frame): raise Late
        signal.signal(signal.SIGALRM, alarm)
        turns = server.engine.shared_loop._turn_count
        responses = patient.infer(inputs=WAIT)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            next(responses)
        except Late:
            print("late")
        responses.cancel()
        print(next(responses).final, server.engine.shared_loop._turn_count == turns)
        server.stop()
        """,
        repository,
    )

    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["late", "True True"]


class AwaitedTurn:
    """A lock that sets an event when somebody begins to wait for it with a time limit."""

    def __init__(self, lock, is_awaited):
        self._lock = lock
        self._is_awaited = is_awaited
        self.release, self.locked = lock.release, lock.locked

    def acquire(self, blocking=True, timeout=-1):
        if timeout > 0:
            self._is_awaited.set()
        return self._lock.acquire(blocking, timeout)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


def test_caller_gets_the_turn_of_a_keeper_that_is_about_to_leave(monkeypatch):
    monkeypatch.setattr(shared_loop, "_LEAVE_S", 60)
    monkeypatch.setattr(shared_loop, "_TICK_S", 60)  # the keeper does not come back for its turn
    shared = SharedLoop()
    shared.start()
    begun, leave, called = (threading.Event() for _ in range(3))
    shared.post(lambda: begun.set() or leave.wait(DEADLINE_S))
    assert begun.wait(DEADLINE_S)
    for _ in range(3):  # as many requests as make a caller a lone one
        assert not shared.call_in_turn(called.set)
    shared.park_soon()
    shared._turn = AwaitedTurn(shared._turn, leave)  # the keeper leaves when the caller waits

    has_called = shared.call_in_turn(called.set)

    shared.end()
    shared.join()
    assert has_called
    assert called.is_set()
