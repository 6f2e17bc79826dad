# SPDX-License-Identifier: Apache-2.0
"""Threads that C starts and that call into Python: their states are held until they are done."""

from __future__ import annotations

import ctypes
import subprocess
import threading

import pytest

from pytriton.runtime.native_backend.foreign_threads import ForeignThreads
from tests.native_backend import building

pytestmark = pytest.mark.skipif(bool(building.missing()), reason=building.missing())

SOURCE = """
#include <pthread.h>
typedef void (*Callback)(int call);
static Callback callback;
static int calls;
static void* run(void* unused)
{
  for (int i = 0; i < calls; i++) callback(i);
  return unused;
}
void run_threads(Callback function, int threads, int count)
{
  callback = function;
  calls = count;
  for (int i = 0; i < threads; i++) {
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    pthread_join(thread, 0);
  }
}
"""
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int)


@pytest.fixture(scope="module")
def run_threads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    (folder / "threads.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-pthread", "threads.c", "-o", "threads.so"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "threads.so"))

    def run(function, threads, calls):
        failures = []

        def guarded(call):
            try:
                function(call)
            except BaseException as error:  # noqa: BLE001  ctypes would only print it
                failures.append(error)

        library.run_threads(CALLBACK(guarded), threads, calls)
        assert failures == []

    return run


class States:
    """Counts the states of threads: one that is new has no mark yet."""

    def __init__(self):
        self._local = threading.local()
        self.count = 0

    def look(self):
        if not hasattr(self._local, "mark"):
            self._local.mark = True
            self.count += 1


def test_thread_without_pin_gets_a_state_for_each_call(run_threads):
    states = States()
    run_threads(lambda _: states.look(), 2, 5)

    assert states.count == 10


@pytest.mark.parametrize(
    "thread_count, call_count, unpinned", [(3, 5, {4}), (1, 6, {1, 3, 5})], ids=["once", "again"]
)
def test_pinned_thread_keeps_its_state(run_threads, thread_count, call_count, unpinned):
    states, threads = States(), ForeignThreads()

    def call(index):
        threads.pin()
        states.look()
        if index in unpinned:
            threads.unpin()
            threads.unpin()

    run_threads(call, thread_count, call_count)

    assert states.count == 3
    assert len(threads) == 0


def test_states_of_threads_that_end_without_unpin_are_swept(run_threads):
    threads = ForeignThreads()
    highest = 0

    def call(_):
        nonlocal highest
        threads.pin()
        highest = max(highest, len(threads))

    run_threads(call, 500, 2)
    sweeper = threads.sweep()
    if sweeper is not None:
        sweeper.join()

    assert highest <= 64
    assert len(threads) == 0
    own = threading.local()
    own.value = 3  # this thread has still its own state
    run_threads(lambda _: None, 1, 1)
    assert own.value == 3


def test_sweep_leaves_threads_alone_that_live():
    threads = ForeignThreads()
    is_pinned, may_end = threading.Event(), threading.Event()

    def run():
        threads.pin()
        is_pinned.set()
        may_end.wait()
        threads.unpin()

    thread = threading.Thread(target=run)
    thread.start()
    is_pinned.wait()
    found = (threads.sweep(), len(threads))
    may_end.set()
    thread.join()

    assert found == (None, 1)
    assert len(threads) == 0


def test_own_thread_is_never_pinned():
    threads = ForeignThreads()
    threads.pin()
    count = len(threads)
    threads.unpin()

    assert count == 0
