# SPDX-License-Identifier: Apache-2.0
"""What the project relies on of sockets, on the real system and on the simulated one."""

from __future__ import annotations

import array
import errno
import socket
from select import POLLERR, POLLHUP, POLLIN, POLLOUT

import pytest

STREAM, PACKET = socket.SOCK_STREAM, socket.SOCK_SEQPACKET
both_kinds = pytest.mark.parametrize("kind", [STREAM, PACKET], ids=["stream", "packet"])
RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
ANCILLARY_BYTES = socket.CMSG_SPACE(16 * 4)
NO_WAIT = socket.MSG_DONTWAIT


def receive_descriptors(sock, size=100, ancillary_size=ANCILLARY_BYTES, flags=NO_WAIT):
    """Returns the bytes and the descriptors of one `recvmsg`, and its flags without unused ones."""
    data, ancillary, told, _ = sock.recvmsg(size, ancillary_size, flags)
    numbers = array.array("i")
    for level, kind, part in ancillary:
        assert (level, kind) == RIGHTS
        numbers.frombytes(part)
    return data, list(numbers), told & (socket.MSG_TRUNC | socket.MSG_CTRUNC)


def read_all(sock, size):
    """Read this number of bytes, however they arrive."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, "the connection ended early"
        data += part
    return data


# Bytes and packets


@pytest.mark.parametrize("kind, parts", [(STREAM, [b"abcd", b"ef"]), (PACKET, [b"abc", b"def"])])
def test_stream_merges_messages_and_packets_keep_their_boundaries(system, kind, parts):
    one, other = system.pair(kind)
    one.send(b"abc")
    one.send(b"def")

    assert [other.recv(4), other.recv(4)] == parts


def test_rest_of_a_packet_that_is_too_long_is_lost(system):
    one, other = system.pair(PACKET)
    one.send(b"abcdef")
    one.send(b"ghi")
    one.send(b"jkl")

    assert receive_descriptors(other, 4) == (b"abcd", [], socket.MSG_TRUNC)
    assert receive_descriptors(other, 4) == (b"ghi", [], 0)
    assert other.recv(2) == b"jk"
    with pytest.raises(BlockingIOError):
        other.recv(2, NO_WAIT)


def test_empty_packet_is_received_as_one(system):
    one, other = system.pair(PACKET)

    assert one.send(b"") == 0
    one.send(b"a")
    assert other.recv(10, NO_WAIT) == b""
    assert other.recv(10, NO_WAIT) == b"a"


def test_empty_data_of_a_stream_is_not_sent(system):
    one, other = system.pair()

    assert one.send(b"") == 0
    with pytest.raises(BlockingIOError):
        other.recv(10, NO_WAIT)


@both_kinds
def test_sent_data_can_be_read_at_once(system, kind):
    one, other = system.pair(kind)
    one.send(b"abc")

    assert system.poll_one(other, POLLIN) == POLLIN
    assert other.recv(100, NO_WAIT) == b"abc"
    assert system.poll_one(other, POLLIN) == 0


@both_kinds
def test_several_buffers_are_one_message_and_are_filled_one_after_the_other(system, kind):
    one, other = system.pair(kind)
    buffers = [bytearray(2), bytearray(3), bytearray(b"....")]

    assert one.sendmsg([b"ab", bytearray(b"cd"), memoryview(b"ef")]) == 6
    assert other.recvmsg_into(buffers)[0] == 6
    assert buffers == [b"ab", b"cde", b"f..."]
    one.send(b"gh")
    assert other.recv_into(buffers[1]) == 2
    assert buffers[1] == b"ghe"


def test_readv_reads_what_there_is(system):
    one, other = system.pair()
    one.send(b"abcdef")
    parts = [memoryview(bytearray(4)), memoryview(bytearray(4))]

    assert system.os.readv(other.fileno(), parts) == 6
    assert [bytes(part) for part in parts] == [b"abcd", b"ef\0\0"]


def test_read_and_write_use_sockets_too(system):
    one, other = system.pair()

    assert system.os.write(one.fileno(), b"abc") == 3
    assert system.os.read(other.fileno(), 100) == b"abc"


# Waiting


@both_kinds
def test_receive_without_data_does_not_wait_if_told_so(system, kind):
    one, other = system.pair(kind)
    with pytest.raises(BlockingIOError) as raised:
        other.recv(10, NO_WAIT)

    assert raised.value.errno == errno.EAGAIN
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(10)
    one.send(b"a")
    assert other.recv(10) == b"a"


@both_kinds
def test_receive_waits_for_data_of_another_process(system, kind):
    one, other = system.pair(kind)

    def answer(descriptor):
        with system.socket.socket(fileno=descriptor) as sock:
            sock.send(sock.recv(10).upper())

    pid = system.start(answer, other.fileno())
    one.send(b"abc")

    assert one.recv(10) == b"ABC"
    assert system.os.waitpid(pid, 0) == (pid, 0)


@both_kinds
def test_receive_ends_at_its_timeout(system, kind):
    one, _other = system.pair(kind)
    one.settimeout(0.01)
    begin = system.time.monotonic()
    with pytest.raises(TimeoutError):
        one.recv(10)

    assert system.time.monotonic() - begin >= 0.01
    assert one.gettimeout() == 0.01


@both_kinds
@pytest.mark.parametrize("timeout_s", [None, 30])
def test_receive_waits_for_data_of_another_thread(system, kind, timeout_s):
    one, other = system.pair(kind)
    other.settimeout(timeout_s)
    thread = system.in_thread(lambda: one.send(b"abc"))

    assert other.recv(10) == b"abc"
    thread.join()


def test_sendall_waits_until_the_other_end_has_read(system):
    one, other = system.pair()
    data = bytes(range(256)) * 8000
    thread = system.in_thread(lambda: one.sendall(data))

    assert read_all(other, len(data)) == data
    thread.join()


def test_packets_wait_until_the_other_end_has_read(system):
    one, other = system.pair(PACKET)
    count = system.fill(one, 10_000)

    def send_more():
        for each in range(count):
            one.send(bytes([each]) * 10_000)

    thread = system.in_thread(send_more)
    received = [other.recv(20_000) for _ in range(2 * count)]
    thread.join()

    assert received[:count] == [bytes(10_000)] * count
    assert received[count:] == [bytes([each]) * 10_000 for each in range(count)]


def test_send_ends_at_its_timeout(system):
    one, _other = system.pair()
    system.fill(one, 10_000)
    one.settimeout(0.01)

    with pytest.raises(TimeoutError):
        one.send(b"a")


# Buffers


@both_kinds
@pytest.mark.parametrize("size", [1, 1000, 30_000])
def test_socket_takes_messages_until_its_buffer_is_full(system, kind, size):
    one, _other = system.pair(kind)
    system.fill(one, size)

    assert system.unread_bytes(one) >= one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    with pytest.raises(BlockingIOError):
        one.send(b"a", NO_WAIT)


@both_kinds
def test_small_messages_take_more_room_than_their_bytes(system, kind):
    one, _other = system.pair(kind)

    assert 100 < system.fill(one, 1) < 1000


@both_kinds
@pytest.mark.parametrize("size", [1, 1000, 30_000])
def test_socket_is_writable_while_a_quarter_of_its_buffer_is_used(system, kind, size):
    one, other = system.pair(kind)
    limit = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    left = system.fill(one, size)
    seen = set()
    while left:
        is_writable = system.unread_bytes(one) * 4 <= limit
        assert system.poll_one(one, POLLOUT) == (POLLOUT if is_writable else 0)
        seen.add(is_writable)
        other.recv(size)
        left -= 1

    assert seen == {False, True} if size < 30_000 else seen
    assert system.unread_bytes(one) == 0
    assert system.poll_one(one, POLLOUT) == POLLOUT


def test_room_of_a_stream_message_is_free_when_all_of_it_was_read(system):
    one, other = system.pair()
    one.send(bytes(1000))
    before = system.unread_bytes(one)
    other.recv(999)

    assert before > 1000
    assert system.unread_bytes(one) == before
    other.recv(1)
    assert system.unread_bytes(one) == 0


def test_stream_sends_what_fits_of_large_data(system):
    one, other = system.pair()
    one.setblocking(False)
    sent = one.send(bytes(10_000_000))

    assert 100_000 < sent < 1_000_000
    assert len(read_all(other, sent)) == sent
    with pytest.raises(BlockingIOError):
        other.recv(1, NO_WAIT)


def test_two_large_packets_fit_into_a_buffer_of_less(system):
    one, _other = system.pair(PACKET)

    assert system.fill(one, 128 << 10) == 2


def test_packet_that_is_larger_than_the_buffer_is_refused(system):
    one, _other = system.pair(PACKET)
    limit = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    with pytest.raises(OSError) as raised:
        one.send(bytes(limit))

    assert raised.value.errno == errno.EMSGSIZE
    assert one.send(bytes(limit - 32)) == limit - 32


@both_kinds
def test_buffer_of_a_closed_peer_is_empty(system, kind):
    one, other = system.pair(kind)
    system.fill(one, 1000)
    other.close()

    assert system.unread_bytes(one) == 0
    assert system.poll_one(one, POLLOUT) & POLLOUT


# The end of a connection


@both_kinds
def test_end_comes_after_what_was_sent(system, kind):
    one, other = system.pair(kind)
    one.send(b"abc")
    one.close()

    assert other.recv(10) == b"abc"
    assert other.recv(10) == b""
    assert other.recv(10) == b""


@both_kinds
def test_end_wakes_a_thread_that_receives(system, kind):
    one, other = system.pair(kind)
    thread = system.in_thread(one.close)

    assert other.recv(10) == b""
    thread.join()


@both_kinds
def test_end_of_a_process_is_the_end_of_its_connections(system, kind):
    one, other = system.pair(kind)
    pid = system.start(lambda _: None, other.fileno())
    other.close()

    assert one.recv(10) == b""
    system.os.waitpid(pid, 0)


@both_kinds
def test_connection_lives_while_another_process_has_its_end(system, kind):
    one, other = system.pair(kind)
    gate, gate_of_child = system.pair()

    def wait_and_answer(descriptor, gate_descriptor):
        system.os.read(gate_descriptor, 1)
        system.os.write(descriptor, b"late")

    pid = system.start(wait_and_answer, other.fileno(), gate_of_child.fileno())
    other.close()
    with pytest.raises(BlockingIOError):
        one.recv(10, NO_WAIT)
    gate.send(b".")

    assert one.recv(10) == b"late"
    assert one.recv(10) == b""
    system.os.waitpid(pid, 0)


@both_kinds
def test_sending_to_a_closed_end_is_a_broken_pipe(system, kind):
    one, other = system.pair(kind)
    other.close()
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            one.send(b"a")

    assert one.recv(10) == b""


def test_stream_whose_data_was_not_read_is_reset_after_the_received_data(system):
    one, other = system.pair()
    one.send(b"unread")
    other.send(b"abc")
    other.close()

    assert one.recv(10) == b"abc"
    with pytest.raises(ConnectionResetError):
        one.recv(10)
    assert one.recv(10) == b""


def test_packets_that_were_not_read_reset_the_connection_before_the_received_data(system):
    one, other = system.pair(PACKET)
    one.send(b"unread")
    other.send(b"abc")
    other.close()

    with pytest.raises(ConnectionResetError):
        one.recv(10)
    assert one.recv(10) == b"abc"
    assert one.recv(10) == b""


def test_sending_on_a_reset_stream_is_a_broken_pipe(system):
    one, other = system.pair()
    one.send(b"unread")
    other.close()
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            one.send(b"a")

    with pytest.raises(ConnectionResetError):
        one.recv(10)


def test_sending_a_packet_reports_the_reset_once(system):
    one, other = system.pair(PACKET)
    one.send(b"unread")
    other.close()

    with pytest.raises(ConnectionResetError):
        one.send(b"a")
    with pytest.raises(BrokenPipeError):
        one.send(b"a")
    assert one.recv(10) == b""


@both_kinds
def test_killed_process_that_did_not_read_resets_the_connection(system, kind):
    one, other = system.pair(kind)
    one.send(b"unread")
    pid = system.start(lambda _: system.time.sleep(60), other.fileno())
    other.close()
    system.os.kill(pid, system.signal.SIGKILL)
    system.os.waitpid(pid, 0)

    with pytest.raises(ConnectionResetError):
        one.recv(10)
    assert one.recv(10) == b""


@both_kinds
def test_thread_that_waits_for_room_hears_of_the_end(system, kind):
    one, other = system.pair(kind)
    system.fill(one, 1000)
    raised = []

    def send():
        try:
            one.send(b"a")
        except OSError as error:
            raised.append(error.errno)

    thread = system.in_thread(send)
    other.close()
    thread.join()

    assert raised in ([errno.EPIPE], [errno.ECONNRESET])


@both_kinds
def test_half_closed_connection_still_carries_the_other_direction(system, kind):
    one, other = system.pair(kind)
    one.send(b"abc")
    one.shutdown(socket.SHUT_WR)

    assert other.recv(10) == b"abc"
    assert other.recv(10) == b""
    other.send(b"back")
    assert one.recv(10) == b"back"
    with pytest.raises(BrokenPipeError):
        one.send(b"more")


@both_kinds
def test_peer_of_an_end_that_receives_no_more_cannot_send(system, kind):
    one, other = system.pair(kind)
    one.send(b"before")
    other.shutdown(socket.SHUT_RD)

    with pytest.raises(BrokenPipeError):
        one.send(b"after")
    assert other.recv(10) == b"before"
    assert other.recv(10) == b""
    assert other.send(b"back") == 4


@both_kinds
def test_shutdown_of_both_directions_ends_both(system, kind):
    one, other = system.pair(kind)
    one.shutdown(socket.SHUT_RDWR)

    assert (one.recv(10), other.recv(10)) == (b"", b"")
    for end in (one, other):
        with pytest.raises(BrokenPipeError):
            end.send(b"a")


@both_kinds
def test_shutdown_wakes_another_thread_of_the_same_process(system, kind):
    one, _other = system.pair(kind)
    thread = system.in_thread(lambda: one.shutdown(socket.SHUT_RDWR))

    assert one.recv(10) == b""
    thread.join()


@both_kinds
def test_shutdown_of_an_ended_connection_does_nothing(system, kind):
    one, other = system.pair(kind)
    one.shutdown(socket.SHUT_WR)
    one.shutdown(socket.SHUT_WR)
    other.close()
    one.shutdown(socket.SHUT_RDWR)

    assert one.recv(10) == b""


# What poll reports


@both_kinds
def test_poll_reports_the_state_of_a_connection(system, kind):
    one, other = system.pair(kind)
    both = POLLIN | POLLOUT

    assert system.poll_one(one, both) == POLLOUT
    other.send(b"a")
    assert system.poll_one(one, both) == POLLIN | POLLOUT
    assert system.poll_one(one, POLLOUT) == POLLOUT
    one.recv(1)
    other.shutdown(socket.SHUT_WR)
    assert system.poll_one(one, both) == POLLIN | POLLOUT
    assert system.poll_one(other, both) == POLLOUT
    other.close()
    assert system.poll_one(one, both) == POLLIN | POLLOUT | POLLHUP
    assert system.poll_one(one, 0) == POLLHUP


@both_kinds
def test_poll_reports_an_error_until_it_was_told(system, kind):
    one, other = system.pair(kind)
    one.send(b"unread")
    other.close()

    assert system.poll_one(one, 0) == POLLHUP | POLLERR
    with pytest.raises(ConnectionResetError):
        one.recv(1)
    assert system.poll_one(one, 0) == POLLHUP


@both_kinds
def test_ends_that_both_send_no_more_are_hung_up(system, kind):
    one, other = system.pair(kind)
    one.shutdown(socket.SHUT_WR)
    other.shutdown(socket.SHUT_WR)

    assert system.poll_one(one, 0) == POLLHUP
    assert system.poll_one(other, 0) == POLLHUP


def test_error_of_a_socket_is_an_option_that_is_told_once(system):
    one, other = system.pair()
    one.send(b"unread")
    other.close()

    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert one.recv(1) == b""


# Sockets as objects


@both_kinds
def test_socket_of_a_descriptor_has_its_kind(system, kind):
    one, other = system.pair(kind)
    with system.socket.socket(fileno=system.os.dup(other.fileno())) as same:
        one.send(b"abc")

        assert same.recv(10) == b"abc"
        assert same.type == kind
        assert same.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == kind


def test_detached_socket_leaves_its_descriptor_open(system):
    one, other = system.pair()
    descriptor = other.detach()

    assert other.fileno() == -1
    other.close()
    one.send(b"abc")
    assert system.os.read(descriptor, 10) == b"abc"
    system.os.close(descriptor)
    assert one.recv(1) == b""


@pytest.mark.parametrize("is_socket_closed", [True, False])
def test_closed_socket_and_one_whose_descriptor_was_closed_are_bad(system, is_socket_closed):
    one, _other = system.pair()
    calls = [lambda: one.send(b"a"), lambda: one.recv(1), lambda: one.shutdown(2)]
    if is_socket_closed:
        one.close()
        one.close()
    else:
        system.os.close(one.fileno())
        calls.append(one.close)
    for call in calls:
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.EBADF
    assert one.fileno() == -1


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_socket_that_nothing_refers_to_is_closed(system):
    one, other = system.socket.socketpair()
    del other

    assert one.recv(1) == b""
    one.close()


def test_blocking_is_of_the_file_and_not_of_the_descriptor(system):
    one, _other = system.pair()
    copy = system.os.dup(one.fileno())
    one.setblocking(False)

    assert system.os.get_blocking(copy) is False
    with pytest.raises(BlockingIOError):
        system.os.read(copy, 1)
    system.os.set_blocking(copy, True)
    system.os.close(copy)


# Descriptors over sockets


@both_kinds
def test_descriptor_that_was_received_is_the_same_file(system, kind):
    one, other = system.pair(kind)
    sent, kept = system.pair()
    system.socket.send_fds(one, [b"with"], [sent.fileno()])
    sent.close()
    data, descriptors, _, _ = system.socket.recv_fds(other, 10, 4)
    with system.socket.socket(fileno=descriptors[0]) as received:
        received.send(b"abc")

    assert data == b"with"
    assert len(descriptors) == 1
    assert kept.recv(10) == b"abc"
    assert kept.recv(10) == b""


@both_kinds
def test_several_descriptors_keep_their_order(system, kind):
    one, other = system.pair(kind)
    numbers = [system.os.memfd_create(str(size)) for size in range(3)]
    for size, number in enumerate(numbers):
        system.os.ftruncate(number, size)
    one.sendmsg([b"a"], [(*RIGHTS, array.array("i", numbers))])
    _, received, told = receive_descriptors(other)

    assert told == 0
    assert [system.os.fstat(each).st_size for each in received] == [0, 1, 2]
    assert len({*numbers, *received}) == 6
    for each in (*numbers, *received):
        system.os.close(each)


def test_descriptors_come_with_the_first_byte_of_their_message(system):
    one, other = system.pair()
    system.socket.send_fds(one, [b"abcd"], [one.fileno()])

    data, descriptors, _ = receive_descriptors(other, 1)
    assert (data, len(descriptors)) == (b"a", 1)
    assert receive_descriptors(other) == (b"bcd", [], 0)
    system.os.close(descriptors[0])


def test_bytes_before_descriptors_are_merged_with_their_message_and_later_ones_are_not(system):
    one, other = system.pair()
    one.send(b"before ")
    system.socket.send_fds(one, [b"first"], [one.fileno()])
    one.send(b"between ")
    system.socket.send_fds(one, [b"second"], [one.fileno(), one.fileno()])
    system.socket.send_fds(one, [b"third"], [one.fileno()])
    received = [receive_descriptors(other) for _ in range(3)]

    assert [(data, len(descriptors)) for data, descriptors, _ in received] == [
        (b"before first", 1),
        (b"between second", 2),
        (b"third", 1),
    ]
    for _, descriptors, _ in received:
        for each in descriptors:
            system.os.close(each)


def test_rest_of_a_message_with_descriptors_is_not_merged_with_the_next(system):
    one, other = system.pair()
    system.socket.send_fds(one, [b"abcd"], [one.fileno()])
    system.socket.send_fds(one, [b"e"], [one.fileno()])
    first = receive_descriptors(other, 2)
    second = receive_descriptors(other)

    assert (first[0], len(first[1])) == (b"ab", 1)
    assert (second[0], len(second[1])) == (b"cde", 1)
    for each in (*first[1], *second[1]):
        system.os.close(each)


@both_kinds
def test_file_under_way_lives_without_a_descriptor(system, kind):
    one, other = system.pair(kind)
    sent, kept = system.pair()
    system.socket.send_fds(one, [b"a"], [sent.fileno()])
    sent.close()
    one.close()

    with pytest.raises(BlockingIOError):
        kept.recv(1, NO_WAIT)
    assert kept.send(b"to nobody yet") == 13
    _, descriptors, _ = receive_descriptors(other)
    assert system.os.read(descriptors[0], 100) == b"to nobody yet"
    system.os.close(descriptors[0])
    assert kept.recv(1) == b""


@both_kinds
def test_lost_message_closes_its_descriptors(system, kind):
    one, other = system.pair(kind)
    sent, kept = system.pair()
    system.socket.send_fds(one, [b"a"], [sent.fileno()])
    sent.close()
    other.close()

    assert kept.recv(1) == b""


@both_kinds
def test_message_that_is_received_without_room_for_descriptors_closes_them(system, kind):
    one, other = system.pair(kind)
    sent, kept = system.pair()
    system.socket.send_fds(one, [b"a"], [sent.fileno()])
    system.socket.send_fds(one, [b"b"], [sent.fileno()])
    sent.close()

    assert other.recv(1) == b"a"
    assert receive_descriptors(other, 1, ancillary_size=0) == (b"b", [], socket.MSG_CTRUNC)
    assert kept.recv(1) == b""


@both_kinds
def test_descriptors_beyond_the_room_are_closed(system, kind):
    one, other = system.pair(kind)
    sent, kept = system.pair()
    system.socket.send_fds(one, [b"a"], [one.fileno(), other.fileno(), sent.fileno()])
    sent.close()
    data, descriptors, told = receive_descriptors(other, 10, socket.CMSG_LEN(2 * 4))

    assert (data, len(descriptors), told) == (b"a", 2, socket.MSG_CTRUNC)
    assert kept.recv(1) == b""
    for each in descriptors:
        system.os.close(each)


@both_kinds
def test_process_without_free_descriptors_receives_some_and_the_rest_is_closed(system, kind):
    one, other = system.pair(kind)
    sent, kept = system.pair()

    def receive(descriptor):
        with system.socket.socket(fileno=descriptor) as sock:
            limit_descriptors(system, free=2)
            data, descriptors, told = receive_descriptors(sock, 10, flags=0)
            assert (data, len(descriptors), told) == (b"a", 2, socket.MSG_CTRUNC)

    pid = system.start(receive, other.fileno())
    numbers = [one.fileno(), other.fileno(), sent.fileno()]
    system.socket.send_fds(one, [b"a"], numbers)
    sent.close()

    assert system.os.waitpid(pid, 0) == (pid, 0)
    assert kept.recv(1) == b""


def limit_descriptors(system, free):
    """Leave this process only a number of free descriptors."""
    lowest = system.os.memfd_create("lowest")
    count = lowest % (1 << 20)  # a simulated number begins with that of its process
    system.os.close(lowest)
    _, hard = system.resource.getrlimit(system.resource.RLIMIT_NOFILE)
    system.resource.setrlimit(system.resource.RLIMIT_NOFILE, (count + free, hard))


def test_more_descriptors_than_a_message_takes_are_refused(system):
    one, _other = system.pair()
    with pytest.raises(OSError) as raised:
        system.socket.send_fds(one, [b"a"], [one.fileno()] * 254)

    assert raised.value.errno == errno.EINVAL


def test_closed_descriptor_cannot_be_sent(system):
    one, _other = system.pair()
    gone = system.os.dup(one.fileno())
    system.os.close(gone)

    with pytest.raises(OSError) as raised:
        system.socket.send_fds(one, [b"a"], [gone])
    assert raised.value.errno == errno.EBADF


# Listening


def make_listener(system, backlog=8):
    listener = system.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(backlog)
    return listener


def connect_to(system, listener):
    client = system.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    client.connect(listener.getsockname())
    return client


def test_listener_accepts_clients_in_their_order(system):
    with make_listener(system) as listener:
        clients = [connect_to(system, listener) for _ in range(3)]
        for number, client in enumerate(clients):
            client.send(bytes([number]))
        accepted = [listener.accept()[0] for _ in range(3)]

        assert [sock.recv(1) for sock in accepted] == [b"\0", b"\1", b"\2"]
        for sock in (*clients, *accepted):
            sock.close()


def test_listener_is_readable_while_clients_wait(system):
    with make_listener(system) as listener:
        listener.setblocking(False)
        assert system.poll_one(listener, POLLIN | POLLOUT) == 0
        with pytest.raises(BlockingIOError):
            listener.accept()
        with connect_to(system, listener):
            assert system.poll_one(listener, POLLIN | POLLOUT, 10_000) == POLLIN
            listener.accept()[0].close()
        assert system.poll_one(listener, POLLIN | POLLOUT) == 0


def test_accept_waits_for_a_client(system):
    with make_listener(system) as listener:
        clients = []
        thread = system.in_thread(lambda: clients.append(connect_to(system, listener)))
        accepted, _ = listener.accept()
        thread.join()
        clients[0].send(b"abc")

        assert accepted.recv(10) == b"abc"
        accepted.close()
        clients[0].close()


def test_client_stays_in_the_queue_while_there_is_no_descriptor(system):
    def serve():
        with make_listener(system) as listener, connect_to(system, listener) as client:
            listener.settimeout(30)
            client.send(b"abc")
            limits = system.resource.getrlimit(system.resource.RLIMIT_NOFILE)
            limit_descriptors(system, free=0)
            for _ in range(2):
                with pytest.raises(OSError) as raised:
                    listener.accept()
                assert raised.value.errno == errno.EMFILE
            assert system.poll_one(listener, POLLIN) == POLLIN
            system.resource.setrlimit(system.resource.RLIMIT_NOFILE, limits)
            with listener.accept()[0] as accepted:
                assert accepted.recv(10) == b"abc"

    system.call_in_child(serve)


def test_port_without_a_listener_refuses(system):
    listener = make_listener(system)
    address = listener.getsockname()
    listener.close()
    with (
        system.socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect(address)


def test_port_in_use_cannot_be_bound_again(system):
    with (
        make_listener(system) as listener,
        system.socket.socket(socket.AF_INET, socket.SOCK_STREAM) as second,
    ):
        with pytest.raises(OSError) as raised:
            second.bind(listener.getsockname())

        assert raised.value.errno == errno.EADDRINUSE


def test_closed_listener_resets_those_that_wait(system):
    listener = make_listener(system)
    with connect_to(system, listener) as client:
        client.send(b"abc")
        system.poll_one(listener, POLLIN, 10_000)
        listener.close()

        with pytest.raises(ConnectionResetError):
            client.recv(10)


# TCP


def test_tcp_end_that_closes_is_not_hung_up_for_the_other(system):
    client, server = system.tcp_pair()
    client.send(b"abc")
    client.close()

    assert read_all(server, 3) == b"abc"
    assert server.recv(10) == b""
    assert system.poll_one(server, POLLIN | POLLOUT) == POLLIN | POLLOUT
    server.close()


def test_tcp_sends_once_to_an_end_that_has_closed(system):
    client, server = system.tcp_pair()
    client.close()

    assert server.recv(10) == b""
    assert server.send(b"a") == 1
    assert system.poll_one(server, 0, 10_000) & POLLHUP
    with pytest.raises(BrokenPipeError):
        server.send(b"b")
    assert server.recv(10) == b""
    server.close()


def test_tcp_end_that_did_not_read_resets_the_connection_after_its_data(system):
    client, server = system.tcp_pair()
    client.send(b"unread")
    system.poll_one(server, POLLIN, 10_000)
    server.send(b"abc")
    server.close()
    assert system.poll_one(client, 0, 10_000) == POLLHUP | POLLERR

    assert client.recv(10) == b"abc"
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    assert client.recv(10) == b""
    client.close()


def test_tcp_reset_is_told_to_a_sender_once(system):
    client, server = system.tcp_pair()
    client.send(b"unread")
    system.poll_one(server, POLLIN, 10_000)
    server.close()
    system.poll_one(client, 0, 10_000)

    with pytest.raises(ConnectionResetError):
        client.send(b"a")
    with pytest.raises(BrokenPipeError):
        client.send(b"a")
    assert client.recv(10) == b""
    with pytest.raises(OSError) as raised:
        client.shutdown(socket.SHUT_WR)
    assert raised.value.errno == errno.ENOTCONN
    client.close()


def test_tcp_half_closed_connection_still_carries_the_other_direction(system):
    client, server = system.tcp_pair()
    client.send(b"abc")
    client.shutdown(socket.SHUT_WR)

    assert read_all(server, 3) == b"abc"
    assert server.recv(10) == b""
    server.send(b"back")
    assert read_all(client, 4) == b"back"
    with pytest.raises(BrokenPipeError):
        client.send(b"more")
    server.shutdown(socket.SHUT_WR)
    assert client.recv(10) == b""
    assert system.poll_one(client, 0, 10_000) == POLLHUP
    client.close()
    server.close()


def test_tcp_is_writable_again_when_the_other_end_has_read(system):
    client, server = system.tcp_pair()
    client.setblocking(False)
    sent = 0
    try:
        while True:
            sent += client.send(bytes(100_000))
    except BlockingIOError:
        pass
    thread = system.in_thread(lambda: read_all(server, sent))

    assert system.poll_one(client, POLLOUT, 30_000) == POLLOUT
    thread.join()
    client.close()
    server.close()
