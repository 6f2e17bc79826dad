# SPDX-License-Identifier: Apache-2.0
"""Memory that was handed to another process cannot be made smaller by either of them."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.runtime.transport import memory
from pytriton.runtime.transport.arena import SEGMENT_BYTES, Arena
from pytriton.runtime.transport.frames import Execute, MemoryFrame, encode_frame
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory import PORTABLE_SETTING, Segment, check_received
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import BlockRef, MemoryUpdate, SegmentRef, TensorRef

SIZE = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has seals")


@pytest.fixture
def receiver():
    """A channel, and how a process that speaks its own frames sends it memory."""
    ours, theirs = socket_pair()
    channel = MemoryChannel(ours, Arena())

    def send(descriptor, size=SIZE, blocks=()):
        notes = MemoryUpdate(list(blocks), [SegmentRef(1, size)])
        socket.send_fds(theirs, [encode_frame(MemoryFrame(memory=notes))], [descriptor])

    channel.send_memory = send
    yield channel
    channel.close()
    theirs.close()


@on_linux
@pytest.mark.parametrize("size", [0, SIZE // 2, 2 * SIZE])
def test_size_of_a_segment_cannot_be_changed(size):
    segment = Segment(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, size)
    segment.view(0, SIZE)[:] = bytes(SIZE)

    assert os.fstat(segment.descriptor).st_size == SIZE


@on_linux
def test_python_without_memfd_makes_the_same_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    segment = Segment(SIZE)

    check_received(segment.descriptor, SIZE)  # raises for memory that is not sealed

    assert os.fstat(segment.descriptor).st_size == SIZE


@on_linux
def test_memory_without_a_seal_is_refused(receiver):
    descriptor = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    receiver.send_memory(descriptor)
    os.close(descriptor)

    with pytest.raises(ValueError, match="sealed against shrinking"):
        receiver.receive()
    assert not receiver.maps_memory


@on_linux
def test_file_is_refused_where_memory_is_sealed(receiver, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    descriptor = os.open(path, os.O_RDWR)
    receiver.send_memory(descriptor)
    os.close(descriptor)

    with pytest.raises(ValueError, match=PORTABLE_SETTING):
        receiver.receive()


@pytest.mark.parametrize("form", ["native", "portable"])
def test_memory_that_is_smaller_than_said_is_refused(receiver, monkeypatch, form):
    monkeypatch.setenv(PORTABLE_SETTING, "1" if form == "portable" else "0")
    segment = Segment(SIZE)
    receiver.send_memory(segment.descriptor, 2 * SIZE)

    with pytest.raises(ValueError, match=f"expected shared memory of {2 * SIZE} bytes, got {SIZE}"):
        receiver.receive()


@pytest.mark.parametrize("extent", [(-64, 128), (SIZE - 64, 128), (0, 2 * SIZE), (64, -64)])
def test_block_outside_of_its_segment_is_refused(receiver, extent):
    segment = Segment(SIZE)
    receiver.send_memory(segment.descriptor, blocks=[BlockRef(1, 1, *extent)])

    with pytest.raises(ValueError, match=r"expected a block within|Expected `int` >= 0"):
        receiver.receive()


def test_file_that_both_processes_use_is_mapped(monkeypatch):
    monkeypatch.setenv(PORTABLE_SETTING, "1")
    assert not memory.has_sealed_memory()
    left, right = (MemoryChannel(sock, Arena()) for sock in socket_pair())
    sent = np.arange(SEGMENT_BYTES // 16, dtype=np.float32)
    payload = left.payload()
    block, offset = payload.add([sent.tobytes()], sent.nbytes)
    ref = TensorRef("x", FP32.number, sent.shape, offset, sent.nbytes, block)
    left.send(Execute(1, [1], [ref]), payload)
    received = right.receive()

    np.testing.assert_array_equal(received.array(ref), sent)
    left.close()
    right.close()


def test_programs_that_are_started_inherit_no_memory(receiver):
    segment = Segment(SIZE)
    receiver.send_memory(segment.descriptor, blocks=[BlockRef(1, 1, 0, SIZE)])
    received = receiver.receive()

    (mapping,) = receiver.tracker._mappings.values()
    assert not os.get_inheritable(mapping.descriptor)
    assert not os.get_inheritable(segment.descriptor)
    del received


@on_linux
@pytest.mark.parametrize("form", ["native", "portable"])
def test_memory_that_cannot_be_made_leaves_no_descriptor(monkeypatch, form):
    monkeypatch.setenv(PORTABLE_SETTING, "1" if form == "portable" else "0")

    def fail(descriptor, size):
        raise OSError("no space")

    monkeypatch.setattr(memory.os, "ftruncate", fail)
    before = set(Path("/proc/self/fd").iterdir())

    with pytest.raises(OSError, match="no space"):
        Segment(SIZE)

    assert set(Path("/proc/self/fd").iterdir()) == before
