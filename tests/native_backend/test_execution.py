# SPDX-License-Identifier: Apache-2.0
"""A batch is answered once, whatever threads of the backend do while its answers are sent."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

import pytest

from pytriton.base.dtypes import BYTES, INT32
from pytriton.base.errors import ErrorCode, InternalError, UnavailableError
from pytriton.base.failure_records import FailureOrigin
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.backend.mailbox import LoopReader
from pytriton.runtime.native_backend.callbacks import exported
from pytriton.runtime.native_backend.foreign_threads import ForeignThreads
from pytriton.runtime.native_backend.memory import word
from pytriton.runtime.native_backend.models import BackendStatistics
from pytriton.runtime.native_backend.outputs import NOT_ANSWERED, NativeReplies, describe
from pytriton.runtime.native_backend.requests import BackendRequests
from pytriton.runtime.native_backend.responses import BackendResponses
from pytriton.runtime.native_backend.server_objects import Errors
from pytriton.runtime.native_backend.stub import MACHINES
from pytriton.runtime.native_backend.worker import NativeExecution
from pytriton.runtime.transport.frames import BatchFailure, BatchResult, Execute
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.refs import TensorRef

ON_LINUX = sys.platform == "linux" and os.uname().machine in MACHINES
pytestmark = pytest.mark.skipif(not ON_LINUX, reason="compiled backends run on Linux only")
FINAL = RELEASE_ALL = 1


class Outbox:
    """Keeps what is sent; `meanwhile` is what a thread of the backend does during that."""

    def __init__(self):
        self.sent = []
        self.failures = []
        self.meanwhile = lambda: None

    def send(self, make):
        if self.failures:
            raise self.failures.pop()
        self.sent.append(make(Payload(None)))
        self.meanwhile()

    def respond(self, make, started_ns, *, at_once):
        self.sent.append(make(Payload(None)))

    def allocate(self, size):
        return None


class Rig:
    """An instance whose backend is a function of Python: it gets the handles of the requests."""

    def __init__(self, execute):
        self.outbox = Outbox()
        errors = Errors()
        self.requests = BackendRequests(["y"], is_batching=True)
        responses = BackendResponses(self.requests, errors, ["y"], ["s"], ForeignThreads(), "m")
        self.api = exported(responses, errors)
        self._batches = OpenBatches(
            self.outbox, LoopReader(None), ["y"], is_decoupled=False, is_batching=True
        )
        self._batches.replies, self._batches.describe = NativeReplies(), describe
        self.open = self._batches.open

        def call(address, count):
            self.handles = [word(address, index) for index in range(count)]
            return execute(self, self.handles) or 0

        self._execution = NativeExecution(
            call, self.requests, responses, errors, BackendStatistics()
        )
        self._batch = 0

    def run(self, count=1, dtype=INT32, data=b"abcd"):
        """Run a batch of requests with one row of one element each; returns what was sent."""
        self._batch += 1
        del self.outbox.sent[:]
        ref = TensorRef("x", dtype.number, (count, 1), 0, count * len(data), 0)
        frame = Execute(self._batch, [1] * count, [ref])
        received = Received(frame, bytearray(data * count), 0, {})
        self._execution.run(self._batches.begin(received))
        return self.outbox.sent

    def respond(self, request, flags=FINAL):
        """Send an empty response, by default as the final one."""
        place = ctypes.c_uint64()
        self.api["TRITONBACKEND_ResponseNew"](ctypes.addressof(place), request)
        self.api["TRITONBACKEND_ResponseSend"](place.value, flags, 0)

    def release(self, request):
        self.api["TRITONBACKEND_RequestRelease"](request, RELEASE_ALL)


def test_request_that_a_thread_releases_while_its_answer_is_sent_is_answered_once():
    def execute(rig, handles):
        rig.respond(handles[0])
        rig.outbox.meanwhile = lambda: rig.release(handles[0])

    rig = Rig(execute)
    frames = [rig.run()[:] for _ in range(3)]

    assert [[type(frame) for frame in each] for each in frames] == [[BatchResult]] * 3
    assert not rig.open
    assert not len(rig.requests.live)


def test_released_record_is_used_for_one_request_only():
    seen = []

    def execute(rig, handles):
        seen.append(set(handles))
        for handle in handles[:-1]:
            rig.respond(handle)
            rig.release(handle)
        rig.respond(handles[-1])
        rig.outbox.meanwhile = lambda: rig.release(handles[-1])

    rig = Rig(execute)
    for _ in range(3):
        rig.run(count=4)

    assert [len(handles) for handles in seen] == [4, 4, 4]


@pytest.mark.parametrize("count", [1, 2])
def test_request_that_is_released_before_its_final_response_fails(count):
    def execute(rig, handles):
        for handle in handles:
            rig.respond(handle, flags=0)
            rig.release(handle)

    rig = Rig(execute)
    (frame,) = rig.run(count)

    assert [item.error for item in frame.items] == [NOT_ANSWERED] * count
    assert not rig.open


def test_request_that_is_answered_later_is_left_to_its_thread():
    rig = Rig(lambda rig, handles: None)
    (frame,) = rig.run()
    (handle,) = rig.handles
    rig.respond(handle)
    rig.release(handle)

    assert frame.returned_batch == 1
    assert frame.items == []
    assert [(item.batch, item.position, item.is_final) for item in rig.outbox.sent[1:]] == [
        (1, 0, True)
    ]
    assert not rig.open


def test_answers_that_cannot_be_sent_become_errors():
    def execute(rig, handles):
        for handle in handles:
            rig.respond(handle)
            rig.release(handle)

    rig = Rig(execute)
    rig.outbox.failures = [UnavailableError("no memory")]
    (frame,) = rig.run(count=2)

    assert isinstance(frame, BatchFailure)
    assert "no memory" in frame.error
    assert isinstance(rig.run()[0], BatchResult)


def test_failure_of_a_batch_leaves_no_request():
    rig = Rig(lambda rig, handles: rig.api["TRITONSERVER_ErrorNew"](3, b"no"))
    (frame,) = rig.run(count=2)

    assert (frame.error, frame.error_code) == ("no", ErrorCode.INVALID_ARG)
    assert frame.origin == FailureOrigin("Invalid argument")
    assert not len(rig.requests.live)
    assert not rig.open


def test_strings_that_are_longer_than_their_tensor_are_refused():
    rig = Rig(lambda rig, handles: pytest.fail("it must not be called"))
    (frame,) = rig.run(count=2, dtype=BYTES, data=struct.pack("<I", 9))

    assert isinstance(frame, BatchFailure)
    assert "expected elements within 8 bytes" in frame.error
    assert not rig.open


def test_state_whose_size_is_not_that_of_its_shape_is_refused():
    place, unused = ctypes.c_uint64(), (ctypes.c_uint64 * 2)()
    shape = (ctypes.c_int64 * 2)(1, 3)

    def execute(rig, handles):
        out, api = ctypes.addressof(place), rig.api
        arguments = (b"s", INT32.number, ctypes.addressof(shape), 2)
        api["TRITONBACKEND_StateNew"](out, handles[0], *arguments)
        state = place.value
        first = ctypes.addressof(unused)
        api["TRITONBACKEND_StateBuffer"](state, out, 4, first, first + 8)
        with pytest.raises(InternalError, match="does not match size"):
            api["TRITONBACKEND_StateUpdate"](state)
        api["TRITONBACKEND_StateBuffer"](state, out, 12, first, first + 8)
        api["TRITONBACKEND_StateUpdate"](state)
        rig.respond(handles[0])
        rig.release(handles[0])

    (frame,) = Rig(execute).run()

    assert [(ref.name, ref.size) for ref in frame.outputs] == [("s", 12)]
