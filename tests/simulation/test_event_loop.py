# SPDX-License-Identifier: Apache-2.0
"""What the project relies on of its event loop, which is uvloop's, and the simulated one.

Time passes only where a timer is tested: otherwise a test takes turns of the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys

import pytest

from tests.simulation.systems import on_loop, turns

uvloop = pytest.importorskip("uvloop")  # the simulated loop differs in details from asyncio's own

# Calls


@on_loop
async def test_calls_run_in_the_order_in_which_they_were_made(system, loop):
    seen = []
    for each in range(3):
        loop.call_soon(seen.append, each)
    loop.call_soon(lambda: loop.call_soon(seen.append, "by a call"))
    loop.call_soon(seen.append, "last")
    await asyncio.sleep(0)

    assert seen == [0, 1, 2, "last"]
    await asyncio.sleep(0)
    assert seen == [0, 1, 2, "last", "by a call"]


@on_loop
async def test_cancelled_call_does_not_run(system, loop):
    seen = []
    first = loop.call_soon(seen.append, 1)
    loop.call_soon(seen.append, 2)
    third = loop.call_soon(seen.append, 3)
    loop.call_soon(seen.append, 4)
    first.cancel()
    loop.call_soon(third.cancel)
    await asyncio.sleep(0)

    assert seen == [2, 3, 4]
    assert first.cancelled()


@on_loop
async def test_call_has_the_context_of_its_caller(system, loop):
    variable = contextvars.ContextVar("variable", default=0)
    seen = []
    variable.set(1)
    loop.call_soon(lambda: seen.append(variable.get()))
    loop.call_soon(lambda: seen.append(variable.get()), context=contextvars.Context())
    variable.set(2)
    await turns()
    loop.call_later(0.001, lambda: seen.append(variable.get()))
    variable.set(3)
    await asyncio.sleep(0.01)

    assert seen == [1, 0, 2]


@on_loop
async def test_error_of_a_call_is_reported_and_the_loop_goes_on(system, loop):
    reports, seen = [], []
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"]))

    def fail(error):
        raise error

    loop.call_soon(fail, ValueError("of the test"))
    loop.call_soon(fail, asyncio.CancelledError("of the test"))
    loop.call_soon(seen.append, "next")
    await turns()
    loop.call_later(0.001, fail, KeyError("of the test"))
    await asyncio.sleep(0.01)

    assert [type(each) for each in reports] == [ValueError, asyncio.CancelledError, KeyError]
    assert seen == ["next"]


# Timers


@on_loop
async def test_timers_run_in_the_order_of_their_times(system, loop):
    seen = []
    loop.call_later(0.02, seen.append, "late")
    loop.call_later(0.01, seen.append, "early")
    for each in range(5):
        loop.call_later(0.015, seen.append, each)
    await asyncio.sleep(0.04)

    assert seen == ["early", 0, 1, 2, 3, 4, "late"]


@on_loop
async def test_cancelled_timer_does_not_run(system, loop):
    seen = []
    first = loop.call_later(0.01, seen.append, 1)
    others = []
    loop.call_later(0.01, lambda: [each.cancel() for each in others])
    others.append(loop.call_later(0.01, seen.append, 3))
    first.cancel()
    await asyncio.sleep(0.03)

    assert seen == []
    assert first.cancelled()


@on_loop
async def test_timer_without_a_delay_is_a_call(system, loop):
    seen = []
    loop.call_later(0, seen.append, "no delay")
    loop.call_later(-1, seen.append, "in the past")
    loop.call_later(0.0004, seen.append, "less than a millisecond")
    loop.call_at(loop.time() - 1, seen.append, "at a time in the past")
    loop.call_soon(seen.append, "soon")
    await asyncio.sleep(0)

    assert seen == [
        "no delay",
        "in the past",
        "less than a millisecond",
        "at a time in the past",
        "soon",
    ]


@on_loop
async def test_time_counts_milliseconds_of_the_monotonic_clock(system, loop):
    before, time, after = system.time.monotonic(), loop.time(), system.time.monotonic()

    assert before - 0.002 <= time <= after
    assert round(time * 1000) == pytest.approx(time * 1000, abs=1e-3)


@on_loop
async def test_timer_does_not_run_more_than_a_millisecond_early(system, loop):
    seen = []

    def note(due_s):
        seen.append(loop.time() - due_s)

    for each in range(20):
        delay_s = 0.0011 + each * 0.00037
        loop.call_later(delay_s, note, loop.time() + delay_s)
    await asyncio.sleep(0.03)

    assert len(seen) == 20
    assert min(seen) > -0.001


@on_loop
async def test_timer_knows_its_time(system, loop):
    now = loop.time()
    timer = loop.call_at(now + 0.5, print)

    assert timer.when() == pytest.approx(now + 0.5, abs=0.01)
    timer.cancel()


# Descriptors


@on_loop
async def test_iteration_runs_calls_then_descriptors_then_timers(system, loop):
    one, other = system.pair()
    seen = []

    def read():
        seen.append(other.recv(10))
        loop.call_soon(seen.append, "by the reader")

    def begin():
        one.send(b"data")
        loop.call_soon(seen.append, "next turn")
        loop.call_later(0.001, seen.append, "timer")
        system.time.sleep(0.005)

    loop.add_reader(other, read)
    loop.call_soon(begin)
    loop.call_soon(seen.append, "same turn")
    await asyncio.sleep(0.05)
    loop.remove_reader(other)

    assert seen == ["same turn", b"data", "timer", "next turn", "by the reader"]


@on_loop
async def test_reader_is_called_until_all_was_read(system, loop):
    one, other = system.pair()
    seen = []
    loop.add_reader(other.fileno(), lambda: seen.append(other.recv(1)))
    one.send(b"abc")
    await turns()

    assert seen == [b"a", b"b", b"c"]
    one.send(b"d")
    await turns()
    assert seen == [b"a", b"b", b"c", b"d"]
    loop.remove_reader(other.fileno())
    one.send(b"e")
    await turns()
    assert len(seen) == 4


@on_loop
async def test_data_that_a_call_has_read_is_not_reported(system, loop):
    one, other = system.pair()
    seen = []
    loop.add_reader(other, lambda: seen.append(other.recv(1)))

    def send_and_read():
        one.send(b"a")
        other.recv(1)

    loop.call_soon(send_and_read)
    await turns()
    loop.remove_reader(other)

    assert seen == []


@on_loop
async def test_removed_reader_is_not_called_any_more_in_its_turn(system, loop):
    pairs = [system.pair() for _ in range(3)]
    seen = []

    def read(number):
        seen.append(number)
        for _, other in pairs:
            loop.remove_reader(other)

    for number, (one, other) in enumerate(pairs):
        loop.add_reader(other, read, number)
        one.send(b"a")
    await turns()

    assert len(seen) == 1


@on_loop
async def test_reader_can_be_removed_and_added_again(system, loop):
    one, other = system.pair()
    seen = []

    def read():
        seen.append(other.recv(1))
        loop.remove_reader(other)
        loop.call_soon(loop.add_reader, other, read)

    loop.add_reader(other, read)
    one.send(b"abc")
    await turns()
    loop.remove_reader(other)

    assert seen == [b"a", b"b", b"c"]


@on_loop
async def test_removing_what_is_not_watched_does_nothing(system, loop):
    one, other = system.pair()
    loop.remove_reader(one)
    loop.remove_writer(one)
    loop.add_reader(other, print)
    loop.remove_writer(other)
    loop.remove_reader(other)
    loop.remove_reader(other)

    assert one.send(b"a") == 1


@on_loop
async def test_writer_is_called_while_there_is_room(system, loop):
    one, other = system.pair()
    seen = []

    def write():
        seen.append("room")
        if len(seen) == 3:
            loop.remove_writer(one)

    loop.add_writer(one, write)
    await turns()

    assert len(seen) == 3
    count = system.fill(one, 1000)
    loop.add_writer(one, lambda: (seen.append("again"), loop.remove_writer(one)))
    await turns()
    assert len(seen) == 3
    for _ in range(count):
        other.recv(1000)
    await turns()
    assert seen[3:] == ["again"]


@on_loop
async def test_new_reader_replaces_the_old_one_and_is_called_before_the_writer(system, loop):
    one, other = system.pair()
    seen = []
    one.send(b"a")
    loop.add_writer(other, lambda: (seen.append("write"), loop.remove_writer(other)))
    loop.add_reader(other, lambda: seen.append("old"))
    loop.add_reader(other, lambda: seen.append(other.recv(1)))
    await turns()
    loop.remove_reader(other)

    assert seen == [b"a", "write"]


@on_loop
async def test_end_of_a_connection_is_reported_until_the_reader_is_removed(system, loop):
    one, other = system.pair()
    seen = []

    def read():
        seen.append(other.recv(1))
        if len(seen) == 3:
            loop.remove_reader(other)

    loop.add_reader(other, read)
    one.close()
    await turns()

    assert seen == [b"", b"", b""]


@on_loop
async def test_reset_connection_is_reported_once(system, loop):
    one, other = system.pair()
    seen = []
    other.send(b"unread")
    one.send(b"abc")
    loop.add_reader(other, lambda: seen.append(other.recv(1)))
    one.close()
    await turns()

    assert seen == [b"a"]
    with pytest.raises(RuntimeError):
        loop.add_writer(other, print)
    loop.remove_reader(other)
    loop.add_reader(other, lambda: seen.append(other.recv(1)))
    await turns()
    assert seen == [b"a", b"b"]
    loop.remove_reader(other)


@on_loop
async def test_reset_connection_is_reported_to_the_reader_and_the_writer(system, loop):
    one, other = system.pair()
    seen = []
    other.send(b"unread")
    count = system.fill(other, 1000)
    loop.add_reader(other, lambda: seen.append("read"))
    loop.add_writer(other, lambda: seen.append("write"))
    await turns()
    assert (seen, count > 0) == ([], True)
    one.close()
    await turns()

    assert seen == ["read", "write"]
    loop.remove_reader(other)
    loop.remove_writer(other)


@on_loop
async def test_error_of_a_reader_is_reported_and_it_stays(system, loop):
    one, other = system.pair()
    reports = []
    loop.set_exception_handler(lambda _, context: reports.append(str(context["exception"])))

    def fail():
        raise ValueError(other.recv(1).decode())

    loop.add_reader(other, fail)
    one.send(b"ab")
    await turns()
    loop.remove_reader(other)

    assert reports == ["a", "b"]


@on_loop
async def test_closed_descriptor_cannot_be_watched(system, loop):
    number = system.os.memfd_create("memory")
    system.os.close(number)

    with pytest.raises(OSError, match="Bad file descriptor"):
        loop.add_reader(number, print)


@on_loop
async def test_end_of_a_process_is_reported_by_its_descriptor(system, loop):
    gate, other = system.pair()
    pid = system.start(lambda descriptor: system.os.read(descriptor, 1), other.fileno())
    descriptor = system.os.pidfd_open(pid)
    ended = loop.create_future()
    loop.add_reader(descriptor, lambda: ended.done() or ended.set_result(None))
    await turns()

    assert not ended.done()
    gate.send(b".")
    await asyncio.wait_for(ended, 30)
    loop.remove_reader(descriptor)
    system.os.close(descriptor)
    assert system.os.waitpid(pid, os.WNOHANG) == (pid, 0)


# Threads


@on_loop
async def test_call_of_another_thread_wakes_the_loop(system, loop):
    called = loop.create_future()
    thread = system.in_thread(lambda: loop.call_soon_threadsafe(called.set_result, "called"))

    assert await asyncio.wait_for(called, 30) == "called"
    thread.join()


@on_loop
async def test_calls_of_another_thread_keep_their_order(system, loop):
    seen, done = [], loop.create_future()

    def call():
        for each in range(10):
            loop.call_soon_threadsafe(seen.append, each)
        loop.call_soon_threadsafe(done.set_result, None)

    system.in_thread(call)
    await asyncio.wait_for(done, 30)

    assert seen == list(range(10))


@on_loop
async def test_work_in_a_thread_does_not_hold_up_the_loop(system, loop):
    gate = system.threading.Event()
    work = loop.run_in_executor(None, gate.wait)
    await turns()

    assert not work.done()
    gate.set()
    assert await work is True


@on_loop
async def test_work_in_a_thread_returns_or_raises(system, loop):
    assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, divmod, 7, 0)
    assert await asyncio.to_thread(divmod, 7, 2) == (3, 1)


@on_loop
async def test_work_in_a_thread_of_a_pool_waits_for_its_turn(system, loop):
    gate, seen = system.threading.Event(), []
    with system.futures.ThreadPoolExecutor(1) as pool:
        first = loop.run_in_executor(pool, gate.wait)
        others = [loop.run_in_executor(pool, seen.append, each) for each in range(3)]
        others[1].cancel()
        await turns()
        assert seen == []
        gate.set()
        await first
        await asyncio.gather(others[0], others[2])

    assert seen == [0, 2]


@on_loop
async def test_default_pool_is_waited_for(system, loop):
    seen = []
    loop.run_in_executor(None, lambda: (system.time.sleep(0.01), seen.append("done")))
    await loop.shutdown_default_executor()

    assert seen == ["done"]


# Tasks


@on_loop
async def test_task_takes_a_turn_for_each_step(system, loop):
    seen = []

    async def step(name):
        for each in range(2):
            seen.append(f"{name}{each}")
            await asyncio.sleep(0)

    await asyncio.gather(step("a"), step("b"))

    assert seen == ["a0", "b0", "a1", "b1"]


@on_loop
async def test_cancelled_task_ends_where_it_waits(system, loop):
    seen = []

    async def wait():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert seen == ["cancelled"]
    assert task.cancelled()


@on_loop
async def test_wait_ends_at_its_timeout(system, loop):
    begin = loop.time()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(loop.create_future(), 0.01)

    assert loop.time() - begin >= 0.009
    assert await asyncio.wait_for(asyncio.sleep(0.001, "done"), 30) == "done"
    task = loop.create_task(asyncio.sleep(3600))
    done, pending = await asyncio.wait([task], timeout=0.01)
    assert (done, pending) == (set(), {task})
    task.cancel()


@on_loop
async def test_task_knows_its_loop_and_itself(system, loop):
    assert asyncio.get_running_loop() is loop
    task = loop.create_task(asyncio.sleep(0), name="named")

    assert task.get_name() == "named"
    assert asyncio.all_tasks(loop) == {asyncio.current_task(), task}
    await task
    assert asyncio.all_tasks(loop) == {asyncio.current_task()}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks have no argument for it before")
@on_loop
async def test_task_has_the_context_that_it_is_given(system, loop):
    variable = contextvars.ContextVar("variable", default=0)
    context = contextvars.Context()
    context.run(variable.set, 1)

    async def look():
        return variable.get()

    assert await loop.create_task(look(), context=context) == 1


# Signals


@on_loop
async def test_signal_is_a_call_on_the_loop(system, loop):
    seen = []
    loop.add_signal_handler(signal.SIGUSR1, seen.append, "signal")
    system.os.kill(system.os.getpid(), signal.SIGUSR1)
    assert seen == []
    await turns()

    assert seen == ["signal"]
    assert loop.remove_signal_handler(signal.SIGUSR1) is True
    assert loop.remove_signal_handler(signal.SIGUSR1) is False
    assert system.signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_signal_of_another_process_wakes_the_loop(system):
    one, other = system.pair()

    def serve(descriptor):
        loop = system.new_event_loop()
        ended = loop.create_future()
        loop.add_signal_handler(signal.SIGTERM, ended.set_result, None)
        loop.call_soon(system.os.write, descriptor, b".")
        loop.run_until_complete(ended)
        loop.close()
        system.os.write(descriptor, b"ended")

    pid = system.start(serve, other.fileno())
    one.recv(1)
    system.os.kill(pid, signal.SIGTERM)

    assert one.recv(10) == b"ended"
    assert system.os.waitpid(pid, 0) == (pid, 0)


# The loop itself


def test_stopped_loop_runs_what_was_queued_before(system):
    loop, seen = system.new_event_loop(), []
    loop.call_soon(seen.append, 1)
    loop.call_soon(loop.stop)
    loop.call_soon(seen.append, 2)
    loop.call_later(0.02, seen.append, "later")
    with pytest.raises(RuntimeError, match="Event loop stopped before Future completed"):
        loop.run_until_complete(loop.create_future())

    assert seen == [1, 2]
    assert not loop.is_running()
    loop.stop()
    loop.call_soon(seen.append, 3)
    loop.run_forever()
    assert seen == [1, 2, 3]
    loop.close()


def test_loop_can_run_again(system):
    loop = system.new_event_loop()

    async def step(value):
        await asyncio.sleep(0.001)
        return value

    assert [loop.run_until_complete(step(each)) for each in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(fail())
    loop.close()


async def fail():
    return 1 / 0


def test_closed_loop_refuses_everything(system):
    loop = system.new_event_loop()
    loop.call_soon(print)
    loop.close()
    loop.close()
    one, _other = system.pair()
    calls = [
        lambda: loop.call_soon(print),
        lambda: loop.call_soon_threadsafe(print),
        lambda: loop.call_later(1, print),
        lambda: loop.add_reader(one, print),
        loop.run_forever,
        loop.stop,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            call()

    assert loop.is_closed()


@on_loop
async def test_running_loop_cannot_be_closed_or_run_twice(system, loop):
    assert loop.is_running()
    with pytest.raises(RuntimeError):
        loop.close()
    with pytest.raises(RuntimeError):
        loop.run_forever()


def test_two_loops_run_in_two_threads(system):
    results = system.queue.SimpleQueue()

    def run(value):
        loop = system.new_event_loop()

        async def work():
            await asyncio.sleep(0.001)
            assert asyncio.get_running_loop() is loop
            return value

        results.put(loop.run_until_complete(work()))
        loop.close()

    threads = [system.in_thread(lambda each=each: run(each)) for each in range(2)]
    for thread in threads:
        thread.join()

    assert {results.get(), results.get()} == {0, 1}


def test_exit_of_a_call_ends_the_run(system):
    loop = system.new_event_loop()

    def leave():
        raise SystemExit(3)

    loop.call_soon(leave)
    with pytest.raises(SystemExit):
        loop.run_forever()
    loop.close()
