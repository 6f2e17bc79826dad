# SPDX-License-Identifier: Apache-2.0
"""What the project relies on of descriptors, memory, processes, signals and threads.

On the real system and on the simulated one; sockets have a file of their own.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import itertools
import os
import queue
import signal
import stat
import subprocess
import sys
from concurrent import futures
from select import POLLHUP, POLLIN, POLLNVAL, POLLOUT

import numpy as np
import pytest

ADD_SEALS, GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW = 1, 2, 4
ALLOW_SEALING = 2


# Descriptors


def test_new_descriptor_has_the_lowest_free_number(system):
    numbers = [system.os.memfd_create("memory") for _ in range(4)]
    for each in (numbers[2], numbers[1]):
        system.os.close(each)
    again = [system.os.dup(numbers[0]) for _ in range(2)]

    assert again == [numbers[1], numbers[2]]
    for each in (numbers[0], *again, numbers[3]):
        system.os.close(each)


def test_closed_descriptor_is_a_bad_one(system):
    number = system.os.memfd_create("memory")
    system.os.close(number)
    calls = [
        lambda: system.os.close(number),
        lambda: system.os.dup(number),
        lambda: system.os.fstat(number),
        lambda: system.os.set_inheritable(number, False),
        lambda: system.os.set_blocking(number, False),
        lambda: system.socket.socket(fileno=number),
        lambda: system.fcntl.fcntl(number, GET_SEALS),
        lambda: system.fcntl.ioctl(number, 0x5411, bytes(4)),
    ]
    for call in calls:
        with pytest.raises(OSError) as raised:
            call()

        assert raised.value.errno == errno.EBADF


def test_copy_of_a_descriptor_is_the_same_file(system):
    one, other = system.pair()
    copy = system.os.dup(other.fileno())
    other.close()
    one.send(b"abc")

    assert system.os.read(copy, 10) == b"abc"
    system.os.close(copy)
    assert one.recv(1) == b""


def test_range_of_descriptors_is_closed(system):
    one, other = system.pair()
    low = min(one.fileno(), other.fileno())
    high = max(one.fileno(), other.fileno())

    def close_all(*descriptors):
        system.os.closerange(min(descriptors), max(descriptors) + 1)
        for each in descriptors:
            with pytest.raises(OSError):
                system.os.fstat(each)

    system.call_in_child(close_all, low, high)


def test_process_without_free_descriptors_opens_none(system):
    def open_many():
        lowest = system.os.memfd_create("memory")
        system.os.close(lowest)
        count = lowest % (1 << 20)  # a simulated number begins with that of its process
        _, hard = system.resource.getrlimit(system.resource.RLIMIT_NOFILE)
        system.resource.setrlimit(system.resource.RLIMIT_NOFILE, (count + 1, hard))
        calls = [
            system.socket.socketpair,
            lambda: system.os.dup(kept),
            lambda: system.os.memfd_create("memory"),
            lambda: system.os.pidfd_open(system.os.getpid()),
            lambda: system.mmap.mmap(kept, 1),
        ]
        kept = -1
        for call in calls:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.EMFILE
            if kept < 0:
                kept = system.os.memfd_create("memory")
                system.os.ftruncate(kept, 1)
        system.os.close(kept)
        assert system.os.memfd_create("memory") == lowest

    system.call_in_child(open_many)


# Shared memory


def make_memory(system, size, flags=ALLOW_SEALING):
    number = system.os.memfd_create("memory", flags)
    system.os.ftruncate(number, size)
    return number


def test_memory_is_zero_where_it_grows_and_keeps_its_start(system):
    number = system.os.memfd_create("memory")

    assert system.os.fstat(number).st_size == 0
    system.os.ftruncate(number, 100)
    assert system.os.fstat(number).st_size == 100
    memory = system.mmap.mmap(number, 100)
    assert memory[0:100] == bytes(100)
    memory[0:4] = b"abcd"
    memory.close()
    del memory
    system.os.ftruncate(number, 3)
    system.os.ftruncate(number, 6)
    memory = system.mmap.mmap(number, 0)
    assert memory[0:6] == b"abc\0\0\0"
    assert memory.size() == 6
    memory.close()
    system.os.close(number)


@pytest.fixture
def key():
    """A name that no other object of shared memory has."""
    return f"simulation-{os.getpid()}-{next(_NUMBERS)}"


_NUMBERS = itertools.count()


def test_memory_with_a_name_is_read_and_written_at_offsets(system, key):
    memory = system.named_memory(key, 100)
    memory.write(10, b"inputs")
    number = system.os.open(f"/dev/shm/{key}", os.O_RDWR | os.O_CLOEXEC)
    read = bytearray(20)
    count = system.os.preadv(number, [memoryview(read)], 8)
    written = system.os.pwrite(number, b"outputs", 50)

    assert (count, read) == (20, bytearray(b"\0\0inputs").ljust(20, b"\0"))
    assert (written, memory.read(49, 9)) == (7, b"\0outputs\0")
    assert stat.S_ISREG(system.os.fstat(number).st_mode)
    system.os.close(number)
    memory.unlink()


def test_memory_with_a_name_ends_where_its_client_cuts_it(system, key):
    memory = system.named_memory(key, 100)
    number = system.os.open(f"/dev/shm/{key}", os.O_RDWR | os.O_CLOEXEC)
    memory.write(0, b"x" * 100)
    memory.resize(10)
    read = bytearray(20)

    assert system.os.fstat(number).st_size == 10
    assert system.os.preadv(number, [memoryview(read)], 5) == 5
    assert system.os.preadv(number, [memoryview(read)], 50) == 0
    system.os.pwrite(number, b"y", 19)
    assert memory.size == 20
    assert memory.read(8, 20) == b"xx" + bytes(9) + b"y"
    system.os.close(number)
    memory.unlink()


def test_memory_without_its_name_stays_with_those_that_opened_it(system, key):
    memory = system.named_memory(key, 10)
    number = system.os.open(f"/dev/shm/{key}", os.O_RDWR | os.O_CLOEXEC)
    memory.unlink()
    memory.write(0, b"first")
    again = system.named_memory(key, 10)
    read = bytearray(5)
    system.os.preadv(number, [memoryview(read)], 0)

    assert (bytes(read), again.read(0, 5)) == (b"first", bytes(5))
    again.unlink()
    system.os.close(number)
    with pytest.raises(OSError) as raised:
        system.os.open(f"/dev/shm/{key}", os.O_RDWR | os.O_CLOEXEC)

    assert raised.value.errno == errno.ENOENT


def test_mapped_memory_is_copied_until_its_client_cuts_it(system, key):
    size = 300_000
    memory = system.named_memory(key, size)
    memory.write(0, b"x" * size)
    number = system.os.open(f"/dev/shm/{key}", os.O_RDWR | os.O_CLOEXEC)
    mapping = system.guarded_mapping(number, size)
    target = np.zeros(size, np.uint8)
    address = target.ctypes.data

    assert mapping.read(1, address, size - 1)
    assert target.tobytes() == b"x" * (size - 1) + b"\0"
    target[:] = ord("y")
    assert mapping.write(100, address, size - 100)
    assert memory.read(99, size) == b"x" + b"y" * (size - 100)
    memory.resize(100_000)
    assert not mapping.read(0, address, size)
    assert not mapping.write(0, address, 10)  # it is broken for good
    assert memory.size == 100_000
    system.os.close(number)
    memory.unlink()


def test_sealed_size_cannot_be_changed(system):
    number = make_memory(system, 9)

    assert system.fcntl.fcntl(number, GET_SEALS) == 0
    system.fcntl.fcntl(number, ADD_SEALS, SEAL_SHRINK)
    system.os.ftruncate(number, 10)
    with pytest.raises(PermissionError):
        system.os.ftruncate(number, 9)
    system.fcntl.fcntl(number, ADD_SEALS, SEAL_GROW | SEAL_SEAL)
    assert system.fcntl.fcntl(number, GET_SEALS) == SEAL_SHRINK | SEAL_GROW | SEAL_SEAL
    for size in (0, 9, 11):
        with pytest.raises(PermissionError):
            system.os.ftruncate(number, size)
    system.os.ftruncate(number, 10)
    with pytest.raises(PermissionError):
        system.fcntl.fcntl(number, ADD_SEALS, SEAL_GROW)
    system.os.close(number)


def test_memory_that_does_not_allow_seals_has_the_one_against_more(system):
    number = make_memory(system, 10, flags=0)

    assert system.fcntl.fcntl(number, GET_SEALS) == SEAL_SEAL
    with pytest.raises(PermissionError):
        system.fcntl.fcntl(number, ADD_SEALS, SEAL_SHRINK)
    system.os.close(number)


def test_socket_has_no_seals(system):
    one, _other = system.pair()
    with pytest.raises(OSError) as raised:
        system.fcntl.fcntl(one.fileno(), GET_SEALS)

    assert raised.value.errno == errno.EINVAL


def test_mapping_beyond_the_end_is_refused(system):
    number = make_memory(system, 10)
    with pytest.raises(ValueError, match="mmap length is greater than file size"):
        system.mmap.mmap(number, 11)

    system.os.close(number)


def test_mapping_outlives_the_descriptor(system):
    number = make_memory(system, 10)
    first, second = system.mmap.mmap(number, 10), system.mmap.mmap(number, 10)
    system.os.close(number)
    first[2:5] = b"abc"

    assert second[0:6] == b"\0\0abc\0"
    assert second[3] == ord("b")
    first.close()
    second.close()


def test_array_of_a_mapping_shares_its_memory(system):
    number = make_memory(system, 16)
    array = np.frombuffer(system.mmap.mmap(number, 16), np.uint8)
    other = np.frombuffer(system.mmap.mmap(number, 16), np.uint8)
    array[3] = 7
    view = array.data[2:5]
    view[0] = 9

    assert other.tolist()[:5] == [0, 0, 9, 7, 0]
    system.os.close(number)


def test_mapping_is_shared_between_processes(system):
    number = make_memory(system, 10)
    one, other = system.pair()

    def write(descriptor):
        with system.socket.socket(fileno=descriptor) as sock:
            _, received, _, _ = system.socket.recv_fds(sock, 10, 1)
            assert system.os.fstat(received[0]).st_size == 10
            memory = system.mmap.mmap(received[0], 10)
            memory[0:3] = b"abc"
            sock.send(b"done")
            sock.recv(1)
            assert memory[3:6] == b"def"

    pid = system.start(write, other.fileno())
    other.close()
    memory = system.mmap.mmap(number, 10)
    system.socket.send_fds(one, [b"take"], [number])
    system.os.close(number)

    assert one.recv(10) == b"done"
    assert memory[0:3] == b"abc"
    memory[3:6] = b"def"
    one.send(b".")
    assert system.os.waitpid(pid, 0) == (pid, 0)
    memory.close()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this mapping has no descriptor there")
def test_mapping_has_a_descriptor_until_nothing_refers_to_it(system):
    number = make_memory(system, 10)
    array = np.frombuffer(system.mmap.mmap(number, 10), np.uint8)
    system.os.close(number)
    others = [system.os.memfd_create("memory") for _ in range(2)]
    view = array[2:]
    del array

    assert others[0] == number
    assert others[1] == number + 2  # the number between is that of the mapping
    view[0] = 1
    del view
    again = system.os.memfd_create("memory")
    assert again == number + 1
    for each in (*others, again):
        system.os.close(each)


# Poll


def test_poll_reports_in_the_order_of_registration(system):
    pairs = [system.pair() for _ in range(3)]
    poll = system.select.poll()
    for _, other in reversed(pairs):
        poll.register(other, POLLIN)
    for one, _ in pairs:
        one.send(b"a")

    assert poll.poll() == [(other.fileno(), POLLIN) for _, other in reversed(pairs)]


def test_poll_reports_until_all_was_read(system):
    one, other = system.pair()
    one.send(b"ab")
    poll = system.select.poll()
    poll.register(other, POLLIN)

    assert poll.poll(0) == poll.poll() == [(other.fileno(), POLLIN)]
    other.recv(1)
    assert poll.poll() == [(other.fileno(), POLLIN)]
    other.recv(1)
    assert poll.poll(0) == []


def test_poll_waits_for_the_first_of_several(system):
    one, other = system.pair()
    third, fourth = system.pair()
    poll = system.select.poll()
    poll.register(other.fileno(), POLLIN)
    poll.register(fourth.fileno(), POLLIN)
    thread = system.in_thread(lambda: third.send(b"a"))

    assert poll.poll() == [(fourth.fileno(), POLLIN)]
    thread.join()
    one.close()
    assert dict(poll.poll()) == {other.fileno(): POLLIN | POLLHUP, fourth.fileno(): POLLIN}


def test_poll_ends_at_its_timeout(system):
    one, _other = system.pair()
    poll = system.select.poll()
    poll.register(one, POLLIN)
    begin = system.time.monotonic()

    assert poll.poll(10) == []
    assert system.time.monotonic() - begin >= 0.01


def test_poll_forgets_what_is_unregistered(system):
    one, other = system.pair()
    one.send(b"a")
    poll = system.select.poll()
    poll.register(other)

    assert poll.poll(0) == [(other.fileno(), POLLIN | POLLOUT)]
    poll.register(other, POLLOUT)
    assert poll.poll(0) == [(other.fileno(), POLLOUT)]
    poll.modify(other, POLLIN)
    assert poll.poll(0) == [(other.fileno(), POLLIN)]
    poll.unregister(other)
    assert poll.poll(0) == []
    with pytest.raises(KeyError):
        poll.unregister(other)
    with pytest.raises(FileNotFoundError):
        poll.modify(other, POLLIN)


def test_poll_reports_closed_descriptors_beside_others(system):
    one, other = system.pair()
    third, _fourth = system.pair()
    poll = system.select.poll()
    gone = other.fileno()
    poll.register(gone, POLLIN)
    poll.register(third, POLLOUT)
    other.close()

    assert poll.poll() == [(gone, POLLNVAL), (third.fileno(), POLLOUT)]
    assert one.recv(1) == b""


def test_memory_is_always_ready(system):
    number = make_memory(system, 10)

    assert system.poll_one(number, POLLIN | POLLOUT) == POLLIN | POLLOUT
    system.os.close(number)


# Processes


def end_with(system, status):
    """Returns what a process does that ends with a status."""
    return lambda *_: system.os._exit(status)


def wait_for_ever(system):
    """Returns what a process does that ends by a signal only."""
    return lambda *_: system.time.sleep(3600)


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_status_of_a_process_is_what_it_ended_with(system, status):
    pid = system.start(end_with(system, status))

    assert system.os.waitpid(pid, 0) == (pid, status << 8)
    with pytest.raises(ChildProcessError):
        system.os.waitpid(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_status_of_a_killed_process_is_the_signal(system, number):
    pid = system.start(wait_for_ever(system))
    system.os.kill(pid, number)

    assert system.os.waitpid(pid, 0) == (pid, number)


def test_wait_without_patience_tells_that_the_child_runs(system):
    gate, other = system.pair()
    pid = system.start(lambda descriptor: system.os.read(descriptor, 1), other.fileno())

    assert system.os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert system.os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None
    assert system.os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    gate.send(b".")
    assert system.os.waitpid(pid, 0) == (pid, 0)


def test_child_that_was_looked_at_can_be_waited_for_later(system):
    pid = system.start(end_with(system, 3))
    ended = system.os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)

    assert (ended.si_pid, ended.si_status, ended.si_code) == (pid, 3, os.CLD_EXITED)
    assert system.os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG).si_pid == pid
    assert system.os.waitid(os.P_PID, pid, os.WEXITED).si_pid == pid
    with pytest.raises(ChildProcessError):
        system.os.waitid(os.P_PID, pid, os.WEXITED)


def test_waitid_tells_the_signal_that_ended_a_child(system):
    pid = system.start(wait_for_ever(system))
    system.os.kill(pid, signal.SIGKILL)
    ended = system.os.waitid(os.P_PID, pid, os.WEXITED)

    assert (ended.si_status, ended.si_code) == (signal.SIGKILL, os.CLD_KILLED)


def test_process_without_children_has_none_to_wait_for(system):
    def wait():
        for call in (
            lambda: system.os.waitpid(-1, os.WNOHANG),
            lambda: system.os.waitpid(system.os.getpid(), 0),
            lambda: system.os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG),
        ):
            with pytest.raises(ChildProcessError):
                call()

    system.call_in_child(wait)


def test_wait_for_any_child_returns_the_one_that_ended(system):
    gate, other = system.pair()

    def wait_for_one():
        slow = system.start(lambda descriptor: system.os.read(descriptor, 1), *passed)
        quick = system.start(end_with(system, 5))
        assert system.os.waitpid(-1, 0) == (quick, 5 << 8)
        assert system.os.waitpid(-1, os.WNOHANG) == (0, 0)
        gate_here.send(b".")
        assert system.os.waitpid(-1, 0) == (slow, 0)

    def main(gate_descriptor, other_descriptor):
        nonlocal gate_here
        passed.append(other_descriptor)
        gate_here = system.socket.socket(fileno=gate_descriptor)
        wait_for_one()

    passed, gate_here = [], None
    system.call_in_child(main, gate.fileno(), other.fileno())


def test_child_knows_its_parent(system):
    parent = system.os.getpid()

    def look():
        assert system.os.getppid() == parent
        assert system.os.getpid() != parent

    system.call_in_child(look)


def test_ended_process_has_its_pid_until_it_was_waited_for(system):
    pid = system.start(end_with(system, 0))
    system.os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    system.os.kill(pid, 0)
    system.os.kill(pid, signal.SIGKILL)

    assert system.os.waitpid(pid, 0) == (pid, 0)
    with pytest.raises(ProcessLookupError):
        system.os.kill(pid, 0)


def test_exception_of_the_main_thread_is_status_one(system, capsys):
    def fail():
        raise ValueError("of the test")

    pid = system.start(fail)

    assert system.os.waitpid(pid, 0) == (pid, 1 << 8)


def exit_beside_a_thread(system):
    system.in_thread(lambda: system.time.sleep(3600))
    system.os._exit(4)


def exit_in_a_thread(system):
    system.in_thread(end_with(system, 6)).join()


def leave_a_thread(system):
    system.in_thread(lambda: sys.exit(6)).join()
    system.os._exit(2)


@pytest.mark.parametrize(
    "main, status", [(exit_beside_a_thread, 4), (exit_in_a_thread, 6), (leave_a_thread, 2)]
)
def test_exit_ends_all_threads_of_a_process_and_system_exit_only_its_own(system, main, status):
    pid = system.start(lambda: main(system))

    assert system.os.waitpid(pid, 0) == (pid, status << 8)


def test_process_descriptor_is_readable_when_the_process_has_ended(system):
    gate, other = system.pair()
    pid = system.start(lambda descriptor: system.os.read(descriptor, 1), other.fileno())
    descriptor = system.os.pidfd_open(pid)

    assert system.poll_one(descriptor, POLLIN | POLLOUT) == 0
    gate.send(b".")
    assert system.poll_one(descriptor, POLLIN | POLLOUT, 30_000) == POLLIN
    assert system.os.waitpid(pid, os.WNOHANG) == (pid, 0)
    assert system.poll_one(descriptor, POLLIN) & POLLIN
    system.os.close(descriptor)


def test_sockets_of_a_process_have_ended_when_its_descriptor_is_readable(system):
    for _ in range(5):
        one, other = system.pair()

        def send_and_end(descriptor):
            system.os.write(descriptor, b"last words")

        pid = system.start(send_and_end, other.fileno())
        other.close()
        descriptor = system.os.pidfd_open(pid)
        system.poll_one(descriptor, POLLIN, 30_000)
        one.setblocking(False)

        assert one.recv(100) == b"last words"
        assert one.recv(100) == b""
        system.os.waitpid(pid, 0)
        system.os.close(descriptor)


def test_signal_by_process_descriptor(system):
    pid = system.start(wait_for_ever(system))
    descriptor = system.os.pidfd_open(pid)
    system.signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    assert system.os.waitpid(pid, 0) == (pid, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        system.signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        system.os.pidfd_open(pid)
    system.os.close(descriptor)


# Signals


def answer_each_byte(system):
    """Returns what a process does that sends back each byte."""

    def answer(descriptor):
        while data := system.os.read(descriptor, 1):
            system.os.write(descriptor, data)

    return answer


def test_stopped_process_does_nothing_until_it_is_continued(system):
    one, other = system.pair()
    pid = system.start(answer_each_byte(system), other.fileno())
    one.send(b"a")

    assert one.recv(1) == b"a"
    system.os.kill(pid, signal.SIGSTOP)
    stopped = system.os.waitid(os.P_PID, pid, os.WSTOPPED)
    assert (stopped.si_pid, stopped.si_code) == (pid, os.CLD_STOPPED)
    one.settimeout(0.05)
    one.send(b"b")
    with pytest.raises(TimeoutError):
        one.recv(1)
    assert system.os.waitpid(pid, os.WNOHANG) == (0, 0)
    system.os.kill(pid, signal.SIGCONT)
    one.settimeout(30)
    assert one.recv(1) == b"b"
    system.os.kill(pid, signal.SIGKILL)
    system.os.waitpid(pid, 0)


def test_stopped_process_can_be_killed(system):
    pid = system.start(wait_for_ever(system))
    system.os.kill(pid, signal.SIGSTOP)
    system.os.kill(pid, signal.SIGKILL)

    assert system.os.waitpid(pid, 0) == (pid, signal.SIGKILL)


def test_stopped_process_hears_of_other_signals_when_it_is_continued(system):
    one, other = system.pair()
    pid = system.start(answer_each_byte(system), other.fileno())
    other.close()
    one.send(b"a")
    one.recv(1)
    system.os.kill(pid, signal.SIGSTOP)
    system.os.waitid(os.P_PID, pid, os.WSTOPPED)
    system.os.kill(pid, signal.SIGTERM)
    one.settimeout(0.05)

    with pytest.raises(TimeoutError):
        one.recv(1)
    system.os.kill(pid, signal.SIGCONT)
    assert system.os.waitpid(pid, 0) == (pid, signal.SIGTERM)


def test_ignored_signal_does_nothing(system):
    one, other = system.pair()

    def ignore_and_answer(descriptor):
        assert system.signal.signal(signal.SIGTERM, signal.SIG_IGN) == signal.SIG_DFL
        assert system.signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        system.os.write(descriptor, b".")
        answer_each_byte(system)(descriptor)

    pid = system.start(ignore_and_answer, other.fileno())
    other.close()
    one.recv(1)
    system.os.kill(pid, signal.SIGTERM)
    one.send(b"a")

    assert one.recv(1) == b"a"
    one.close()
    assert system.os.waitpid(pid, 0) == (pid, 0)


def test_handler_runs_in_the_process_while_it_waits(system):
    one, other = system.pair()

    def handle_and_answer(descriptor):
        def on_signal(number, _frame):
            system.os.write(descriptor, b"%d %d" % (number, system.os.getpid()))

        system.signal.signal(signal.SIGUSR1, on_signal)
        system.os.write(descriptor, b".")
        answer_each_byte(system)(descriptor)

    pid = system.start(handle_and_answer, other.fileno())
    other.close()
    one.recv(1)
    system.os.kill(pid, signal.SIGUSR1)

    assert one.recv(100) == b"%d %d" % (signal.SIGUSR1, pid)
    one.send(b"a")  # what it waited for was not interrupted
    assert one.recv(100) == b"a"
    one.close()
    assert system.os.waitpid(pid, 0) == (pid, 0)


def test_handler_of_a_signal_to_oneself_has_run_when_the_call_returns(system):
    seen = []
    before = system.signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    system.os.kill(system.os.getpid(), signal.SIGUSR1)

    assert seen == [signal.SIGUSR1]
    system.signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_some_signals_cannot_be_handled(system, number):
    with pytest.raises(OSError) as raised:
        system.signal.signal(number, signal.SIG_IGN)

    assert raised.value.errno == errno.EINVAL


def test_end_of_a_child_is_a_byte_in_the_wakeup_descriptor(system):
    def watch():
        reader, writer = system.socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        seen = []
        assert system.signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False) == -1
        system.signal.signal(signal.SIGCHLD, lambda number, _: seen.append(number))
        pid = system.start(end_with(system, 0))

        assert system.poll_one(reader, POLLIN, 30_000) == POLLIN
        assert reader.recv(10) == bytes([signal.SIGCHLD])
        assert system.os.waitpid(pid, os.WNOHANG) == (pid, 0)
        assert system.signal.set_wakeup_fd(-1) == writer.fileno()
        reader.close()
        writer.close()

    system.call_in_child(watch)


def test_end_of_a_child_wakes_nobody_without_a_handler(system):
    def watch():
        reader, writer = system.socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        system.signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        system.signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        system.os.waitpid(system.start(end_with(system, 0)), 0)

        with pytest.raises(BlockingIOError):
            reader.recv(10)
        reader.close()
        writer.close()

    system.call_in_child(watch)


# Popen


def sleep_for_ever(system):
    """What a program does that ends by a signal only."""
    system.time.sleep(3600)


def exit_with_three(_system):
    """What a program does that fails."""
    sys.exit(3)


def test_popen_of_a_program_that_ends(system):
    process = system.popen(exit_with_three)

    assert process.wait(60) == 3
    assert (process.poll(), process.returncode, process.wait()) == (3, 3, 3)
    process.kill()


def test_popen_of_a_program_that_runs(system):
    process = system.popen(sleep_for_ever)

    assert process.poll() is None
    assert process.returncode is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL


def test_popen_is_a_child(system):
    process = system.popen(exit_with_three)

    assert system.os.waitpid(process.pid, 0) == (process.pid, 3 << 8)
    assert process.wait() == 0  # as the status is not known any more


# Threads


def test_lock_lets_one_thread_in(system):
    lock = system.threading.Lock()
    seen = []

    def enter():
        with lock:
            seen.append(lock.locked())

    with lock:
        threads = [system.in_thread(enter) for _ in range(3)]

        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0.01)
        assert seen == []
    for thread in threads:
        thread.join()
    assert seen == [True] * 3
    assert not lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()


def test_lock_can_be_released_by_another_thread(system):
    lock = system.threading.Lock()
    lock.acquire()
    thread = system.in_thread(lock.release)

    assert lock.acquire(timeout=30)
    thread.join()


def test_reentrant_lock_belongs_to_its_thread(system):
    lock = system.threading.RLock()
    outcomes = []

    def try_it():
        outcomes.append(lock.acquire(blocking=False))
        try:
            lock.release()
        except RuntimeError:
            outcomes.append("not mine")

    with lock, lock:
        system.in_thread(try_it).join()

    assert outcomes == [False, "not mine"]
    with pytest.raises(RuntimeError):
        lock.release()
    system.in_thread(try_it).join()
    assert outcomes[2:] == [True]


def test_condition_wakes_those_that_wait(system):
    condition = system.threading.Condition()
    seen, waiting = [], []

    def wait(name):
        with condition:
            waiting.append(name)
            condition.wait()
            seen.append(name)
            condition.notify_all()

    threads = [system.in_thread(lambda name=name: wait(name)) for name in "abc"]
    with condition:
        condition.wait_for(lambda: False, 0)
    while len(waiting) < 3:
        with condition:
            condition.wait(0.001)
    with condition:
        condition.notify()
        condition.wait_for(lambda: len(seen) == 3, 30)
    for thread in threads:
        thread.join()

    assert sorted(seen) == ["a", "b", "c"]


def test_condition_wakes_as_many_as_it_is_told(system):
    condition = system.threading.Condition()
    seen = []
    waiting = []

    def wait():
        with condition:
            waiting.append(1)
            seen.append(condition.wait(None if len(waiting) < 3 else 30))

    threads = [system.in_thread(wait) for _ in range(3)]
    while True:
        with condition:
            if len(waiting) == 3:
                condition.notify(2)
                break
        system.time.sleep(0)
    gate = system.threading.Event()
    while len(seen) < 2:
        gate.wait(0.001)

    assert seen == [True, True]
    with condition:
        condition.notify_all()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("depth", [1, 2])
def test_condition_gives_up_its_lock_and_tells_whether_it_was_notified(system, depth):
    condition = system.threading.Condition()

    def notify():
        with condition:
            condition.notify()

    with contextlib.ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(condition)
        assert condition.wait(0.01) is False
        thread = system.in_thread(notify)
        assert condition.wait(30) is True
    thread.join()


def test_condition_shares_a_lock(system):
    lock = system.threading.Lock()
    with system.threading.Condition(lock):
        assert lock.locked()


def test_condition_needs_its_lock(system):
    condition = system.threading.Condition()
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(RuntimeError):
            call()


def test_condition_waits_for_a_predicate(system):
    condition = system.threading.Condition()
    values = []

    def add():
        for each in range(3):
            with condition:
                values.append(each)
                condition.notify()

    with condition:
        thread = system.in_thread(add)

        assert condition.wait_for(lambda: len(values) == 3 and "all", 30) == "all"
        assert not condition.wait_for(lambda: len(values) == 4, 0.01)
    thread.join()


def test_event_lets_all_pass_when_it_is_set(system):
    event = system.threading.Event()
    seen = []
    threads = [system.in_thread(lambda: seen.append(event.wait())) for _ in range(3)]

    assert event.wait(0.01) is False
    assert seen == []
    event.set()
    for thread in threads:
        thread.join()
    assert seen == [True] * 3
    assert event.is_set()
    assert event.wait(0)
    event.clear()
    assert not event.wait(0)


def test_local_values_are_of_a_thread(system):
    local = system.threading.local()
    local.value = 1
    seen = []

    def look():
        seen.append(hasattr(local, "value"))
        local.value = 2
        seen.append(local.value)

    system.in_thread(look).join()

    assert seen == [False, 2]
    assert local.value == 1
    del local.value
    assert not hasattr(local, "value")
    with pytest.raises(AttributeError):
        del local.value


def test_thread_can_be_joined(system):
    gate = system.threading.Event()
    seen = []

    def work(*args, **kwargs):
        gate.wait()
        seen.append((args, kwargs))

    thread = system.threading.Thread(target=work, args=(1,), kwargs={"two": 2}, name="worker")
    with pytest.raises(RuntimeError):
        thread.join()
    assert not thread.is_alive()
    thread.start()

    assert thread.is_alive()
    assert thread.name == "worker"
    thread.join(0.01)
    assert thread.is_alive()
    gate.set()
    thread.join()
    thread.join()
    assert not thread.is_alive()
    assert seen == [((1,), {"two": 2})]
    with pytest.raises(RuntimeError):
        thread.start()


def test_thread_knows_itself(system):
    seen = []

    def look():
        seen.append((system.threading.get_ident(), system.threading.current_thread()))
        with pytest.raises(RuntimeError):
            system.threading.current_thread().join()

    thread = system.threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [(thread.ident, thread)]
    assert thread.ident != system.threading.get_ident()
    assert system.threading.current_thread() is system.threading.main_thread()


def test_thread_has_no_context_of_its_starter(system):
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("of the starter")
    seen = []
    system.in_thread(lambda: seen.append(variable.get())).join()

    assert seen == ["default"]


def test_sleep_takes_its_time(system):
    begin = system.time.monotonic_ns()
    system.time.sleep(0.01)

    assert system.time.monotonic_ns() - begin >= 10_000_000
    system.time.sleep(0)
    with pytest.raises(ValueError, match="sleep length must be non-negative"):
        system.time.sleep(-1)


def test_clocks_do_not_go_back(system):
    for clock in (system.time.monotonic, system.time.perf_counter):
        seen = [clock() for _ in range(10)]

        assert seen == sorted(seen)
    assert abs(system.time.time() - system.time.time_ns() / 1e9) < 60


# Queues, futures and pools


def test_queue_keeps_the_order(system):
    items = system.queue.SimpleQueue()
    for each in range(3):
        items.put(each)

    assert (items.qsize(), items.empty()) == (3, False)
    assert [items.get() for _ in range(3)] == [0, 1, 2]
    assert items.empty()
    with pytest.raises(queue.Empty):
        items.get_nowait()
    with pytest.raises(queue.Empty):
        items.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        items.get(block=False)


def test_queue_lets_readers_wait(system):
    items, seen = system.queue.SimpleQueue(), []
    threads = [system.in_thread(lambda: seen.append(items.get())) for _ in range(3)]
    for each in "abc":
        items.put(each)
    for thread in threads:
        thread.join()

    assert sorted(seen) == ["a", "b", "c"]
    assert items.empty()


def test_future_lets_others_wait_for_its_result_or_its_exception(system):
    futures_of_both = system.futures.Future(), system.futures.Future()
    error = ValueError("of the test")

    def end():
        futures_of_both[0].set_result(5)
        futures_of_both[1].set_exception(error)

    thread = system.in_thread(end)

    assert futures_of_both[0].result(30) == 5
    assert futures_of_both[0].exception() is None
    assert futures_of_both[1].exception(30) is error
    with pytest.raises(ValueError, match="of the test"):
        futures_of_both[1].result()
    thread.join()


def test_future_that_takes_too_long(system):
    future = system.futures.Future()
    for call in (future.result, future.exception):
        with pytest.raises(futures.TimeoutError):
            call(0.01)

    assert future.cancel()
    with pytest.raises(futures.CancelledError):
        future.result()


def test_pool_runs_at_most_its_number_of_calls(system):
    gate, running, most = system.threading.Event(), [], []

    def work(number):
        running.append(number)
        most.append(len(running))
        gate.wait()
        running.remove(number)
        return number

    with system.futures.ThreadPoolExecutor(max_workers=2) as pool:
        pending = [pool.submit(work, each) for each in range(5)]
        gate.set()

        assert [each.result() for each in pending] == [0, 1, 2, 3, 4]
    assert max(most) <= 2


def test_pool_of_one_thread_keeps_the_order_and_passes_exceptions_on(system):
    seen = []
    with system.futures.ThreadPoolExecutor(1) as pool:
        for each in range(5):
            pool.submit(seen.append, each)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()

    assert seen == [0, 1, 2, 3, 4]


def test_pool_drops_calls_that_were_cancelled(system):
    gate, seen = system.threading.Event(), []
    pool = system.futures.ThreadPoolExecutor(1)
    first = pool.submit(gate.wait)
    second, third = pool.submit(seen.append, 2), pool.submit(seen.append, 3)

    assert second.cancel()
    gate.set()
    assert first.result() is True
    third.result()
    assert seen == [3]
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(seen.append, 4)


def test_pool_that_shuts_down_can_cancel_what_waits(system):
    gate = system.threading.Event()
    pool = system.futures.ThreadPoolExecutor(1)
    started = system.threading.Event()

    def work():
        started.set()
        gate.wait()

    first = pool.submit(work)
    started.wait()
    second = pool.submit(gate.wait)
    pool.shutdown(wait=False, cancel_futures=True)

    assert second.cancelled()
    gate.set()
    assert first.result() is None
    pool.shutdown()
