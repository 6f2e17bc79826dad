# SPDX-License-Identifier: Apache-2.0
"""Requests whose tensors are in GPU memory of clients, as the process of a model sees them."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from pytriton.base.dtypes import BYTES, FP32
from pytriton.base.errors import UnavailableError
from pytriton.base.messages import DevicePlace, DeviceUse, DeviceWish
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.backend.mailbox import LoopReader, Mailbox
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import DeviceArray, Order
from pytriton.runtime.cuda.exports import Exports
from pytriton.runtime.cuda.regions import OpenRegions
from pytriton.runtime.cuda.registration import Registrar
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray
from pytriton.runtime.pb_utils.response import FINAL, InferenceResponse
from pytriton.runtime.pb_utils.tensor import DeviceTensor, Tensor
from pytriton.runtime.python_backend.answers import failure_of
from pytriton.runtime.python_backend.batch_execution import BatchExecution
from pytriton.runtime.python_backend.device_tensors import DeviceTensors, exports_of
from pytriton.runtime.python_backend.model_backend import ModelExecution, make_requests
from pytriton.runtime.python_backend.replies import ModelReplies, place
from pytriton.runtime.transport import memory
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import (
    BatchFailure,
    DropRegions,
    Execute,
    ReleaseExports,
    ResponsesFrame,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.response_outbox import ResponseOutbox
from tests.cuda.fake_driver import FakeDriver, FakeMachine
from tests.cuda.test_bound_functions import ComputedByDLPack
from tests.cuda.test_open_regions import SIZE, Scene
from tests.e2e.waiting import DEADLINE_S


def test_first_request_with_gpu_memory_is_told_once():
    scene = Scene()
    told = []
    tensors = DeviceTensors(
        keeps_on_device=True, regions=scene.regions, on_first_use=lambda: told.append("used")
    )
    ref = TensorRef("x", FP32.number, (SIZE // 4,), 0, SIZE)
    for _ in range(2):
        (tensor,) = tensors.column(ref, {0: DeviceUse({"x": scene.place()}, {})}, [1])

    assert told == ["used"]
    assert not tensor.is_cpu()


def test_copy_of_an_input_on_the_host_is_used_again_after_the_work_of_the_device(monkeypatch):
    """A model may copy it to the device again, and that may take longer than the request."""
    scene = Scene()
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    registrar = Registrar(lambda: scene.driver, 1 << 30)
    monkeypatch.setattr(memory, "observers", [registrar])
    arena = Arena()
    tensors = DeviceTensors(keeps_on_device=False, allocate=arena.allocate, regions=scene.regions)
    with scene.client.using(0):
        handle = scene.client.export_memory(scene.client.allocate(1 << 20))

    def place_of_input(number):
        place = scene.place(number, size=1 << 20, handle=handle, region_size=1 << 20)
        ref = TensorRef("x", FP32.number, (1 << 18,), 0, 1 << 20)
        (tensor,) = tensors.column(ref, {0: DeviceUse({"x": place}, {})}, [1])
        return tensor.as_numpy().ctypes.data

    first = place_of_input(1)
    registrar.look()
    assert registrar.wait_until_done(DEADLINE_S)
    scene.driver.gates["drain"] = is_done = threading.Event()
    assert place_of_input(2) == first  # it was released before the device was used
    meanwhile = place_of_input(3)
    is_done.set()
    assert registrar.wait_until_done(DEADLINE_S)
    afterwards = place_of_input(4)
    registrar.stop()

    assert meanwhile != first
    assert afterwards == first


class LentScene:
    """The process of a model that is lent memory of another, some of which it cannot open."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("pytriton.runtime.cuda.regions.observers", [])
        self.driver = FakeDriver(FakeMachine())
        with self.driver.using(0):
            address = self.driver.allocate(SIZE)
            self.handle = self.driver.export_memory(address)
        self.ended = []
        self.tensors = DeviceTensors(
            keeps_on_device=True,
            regions=OpenRegions(lambda: self.driver, self.ended.append),
            exports=Exports(lambda: self.driver),
            post=lambda notes: self.ended.extend(notes.leases),
        )

    def use(self, lease, *, is_known=True):
        gpu = bytes(16) if is_known else b"?" * 16
        place = DevicePlace("of instance 'a'", 1, self.handle, 0, SIZE, 0, SIZE, gpu, lease)
        return DeviceUse({"x": place}, {})


def test_inputs_that_come_after_one_that_cannot_be_opened_are_given_back(monkeypatch):
    scene = LentScene(monkeypatch)
    uses = {0: scene.use(1), 1: scene.use(2, is_known=False), 2: scene.use(3)}
    ref = TensorRef("x", FP32.number, (3 * SIZE // 4,), 0, 3 * SIZE)
    frame = Execute(1, [SIZE // 4] * 3, [ref], devices=uses)
    batch = begin(None, frame, scene.tensors)

    with pytest.raises(UnavailableError, match="cannot be opened"):
        make_requests(batch, scene.tensors)
    gc.collect()
    assert set(scene.ended) == {1, 2, 3}


def test_outputs_that_could_not_be_sent_are_given_up(monkeypatch):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    with scene.driver.using(0):
        address = scene.driver.allocate(SIZE)
    array = DeviceArray(address, 0, FP32.numpy, (1, SIZE // 4), object(), Order.COMPLETE)
    tensor = DeviceTensor.of_device("y", array)
    text = Tensor("z", np.array([["no"]], object))
    frame = Execute(1, [1], [], device_wishes={0: DeviceWish()})
    batch = begin(None, frame, scene.tensors, outputs=("y", "z"))
    response = place(batch, 0, InferenceResponse([tensor, text]), scene.tensors)
    monkeypatch.setattr(Payload, "add", fail_for_memory)

    with pytest.raises(UnavailableError, match="no room"):
        batch._make_item(0, response, None, True, Payload(None))
    assert len(scene.tensors._exports) == 0


def fail_for_memory(*_):
    raise UnavailableError("there is no room")


def begin(outbox, frame, tensors, *, outputs=("y",), is_decoupled=False):
    """A batch of a model with these outputs, some of which belong into GPU memory."""
    batches = OpenBatches(
        outbox, LoopReader(None), outputs, is_decoupled=is_decoupled, is_batching=True
    )
    batches.replies = ModelReplies(tensors)
    batches.describe = lambda batch, error: failure_of("m_0_0", error)
    return batches.begin(Received(frame, bytearray(), 0, {}))


class Held:
    """Notes whether a lock was held when this ended."""

    def __init__(self, lock, notes):
        self.lock, self.notes = lock, notes

    def __del__(self):
        self.notes.append(self.lock.locked())


def test_tensors_of_the_same_name_go_through_the_host(monkeypatch):
    scene = LentScene(monkeypatch)
    with scene.driver.using(0):
        address = scene.driver.allocate(SIZE)
    array = DeviceArray(address, 0, FP32.numpy, (1, SIZE // 4), object(), Order.COMPLETE)
    tensors = [DeviceTensor.of_device(name, array) for name in ("y", "y", "z")]
    _, _, alone = shared = scene.tensors.share(tensors, ["y", "z"], bytes(16))

    assert shared[:2] == tensors[:2]
    assert exports_of(shared) == {"z": alone.to_wire()[2].export}


def test_tensor_that_is_passed_on_keeps_the_lease_that_it_names(monkeypatch):
    """Memory that was lent for two requests has two leases, and a response may wait to be sent."""
    scene = LentScene(monkeypatch)
    ref = TensorRef("x", FP32.number, (SIZE // 4,), 0, SIZE)
    first, second = (scene.tensors.column(ref, {0: scene.use(n)}, [1]) for n in (1, 2))
    shared = scene.tensors.share(second, ["x"], bytes(16))
    named = exports_of(shared)["x"].lease
    del first, second
    gc.collect()
    ended = list(scene.ended)
    del shared
    gc.collect()

    assert named not in ended
    assert sorted(scene.ended) == [1, 2]


def test_what_messages_end_ends_when_the_mailbox_is_not_locked(monkeypatch):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    tensors = scene.tensors
    handlers = {DropRegions: tensors.on_drop, ReleaseExports: tensors.on_release}
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in socket_pair()]
        mailbox = Mailbox(ResponseOutbox(MemoryChannel(sockets[0], Arena())), handlers)
        notes = []
        monkeypatch.setattr(
            scene.driver, "close_memory", lambda _: notes.append(mailbox._lock.locked())
        )
        with scene.driver.using(0):
            address = scene.driver.allocate(8)
        owner = Held(mailbox._lock, notes)
        export = tensors._exports.add(
            DeviceArray(address, 0, FP32.numpy, (2,), owner, Order.COMPLETE)
        )
        del owner
        ref = TensorRef("x", FP32.number, (SIZE // 4,), 0, SIZE)
        tensors.column(ref, {0: scene.use(1)}, [1])
        for frame in (DropRegions([1]), ReleaseExports([export.block])):
            mailbox._dispatch(Received(frame, bytearray(), 0, {}))

    assert notes == [False, False]


class Outbox:
    """Makes frames, and keeps them; those with responses cannot be encoded if that is wanted."""

    def __init__(self, *, is_broken=False):
        self.frames = []
        self._is_broken = is_broken
        self._arena = Arena()

    def allocate(self, size):
        return self._arena.allocate(size)

    def send(self, make):
        frame = make(Payload(None))
        if self._is_broken and isinstance(frame, ResponsesFrame):
            raise OverflowError("can't serialize ints")
        self.frames.append(frame)


class Connection:
    """A worker's outbox, and what the server has read of it."""

    def __init__(self, stack):
        sockets = [stack.enter_context(sock) for sock in socket_pair()]
        self.outbox = ResponseOutbox(MemoryChannel(sockets[0], Arena()))
        self._server = MemoryChannel(sockets[1], Arena())

    def read(self):
        frames = []
        while (received := self._server.receive(socket.MSG_DONTWAIT)) is not None:
            frames.append(received.frame)
        return frames


def test_response_with_lent_memory_comes_before_the_end_of_its_lease(monkeypatch):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    with contextlib.ExitStack() as stack:
        connection = Connection(stack)
        outbox = connection.outbox
        tensors = DeviceTensors(keeps_on_device=True, post=outbox.post)
        ref = TensorRef("x", FP32.number, (SIZE // 4,), 0, SIZE)
        frame = Execute(1, [1], [ref], devices={0: scene.use(7)}, device_wishes={0: DeviceWish()})
        (request,) = make_requests(begin(outbox, frame, tensors, is_decoupled=True), tensors)
        sender = request.get_response_sender()
        sender.send(InferenceResponse([Tensor("y", np.zeros(1, np.float32))]))  # goes at once
        sender.send(InferenceResponse([Tensor.from_dlpack("y", request.inputs()[0])]))
        del request
        gc.collect()
        outbox.flush()
        _, passed_on, ended = connection.read()

    assert [item.device["y"].lease for item in passed_on.items] == [7]
    assert ended.leases == [7]


def execute(model, frame, tensors, outbox, kind=ModelExecution):
    """Run a batch of a model in this process."""
    failures = []
    runtime = SimpleNamespace(log_failure=failures.append, instance_name="m_0_0")
    if kind is BatchExecution:
        execution = BatchExecution(model, runtime, tensors, {"y": FP32})
    else:
        execution = ModelExecution(model, "m", runtime, tensors, None)
    execution.run(begin(outbox, frame, tensors))
    return failures


@pytest.mark.parametrize("kind", [object, "S4"])
def test_texts_are_written_to_the_clients_memory(kind):
    scene = Scene()
    texts = np.array([["abcd", "efgh"]], kind)
    model = SimpleNamespace(execute=lambda _: [InferenceResponse([Tensor("y", texts)])])
    outbox = Outbox()
    tensors = DeviceTensors(keeps_on_device=False, regions=scene.regions)
    frame = Execute(1, [1], [], devices={0: DeviceUse({}, {"y": scene.place()})})

    assert execute(model, frame, tensors, outbox) == []
    assert np.array(scene.content(4), np.float32).tobytes() == b"\4\0\0\0abcd\4\0\0\0efgh"
    (ref,) = outbox.frames[0].outputs
    assert (ref.dtype, ref.shape, ref.size) == (BYTES.number, (1, 2), 0)


def test_response_that_a_sender_holds_is_written_to_the_clients_memory_before_the_error():
    scene = Scene()

    def fail_after_sending(requests):
        output = Tensor("y", np.array([[5.0, 6.0]], np.float32))
        requests[0].get_response_sender().send(InferenceResponse([output]))
        raise ValueError("after it was sent")

    outbox = Outbox()
    tensors = DeviceTensors(keeps_on_device=False, regions=scene.regions)
    frame = Execute(1, [1], [], devices={0: DeviceUse({}, {"y": scene.place()})})
    execute(SimpleNamespace(execute=fail_after_sending), frame, tensors, outbox)

    assert scene.content(2) == [5, 6]
    assert [ref.size for ref in outbox.frames[0].items[0].outputs] == [0]


def answer_of_sender(tensors, frame, output, *, is_decoupled):
    """The answer of a model that sends it after `execute` has returned, say, from a thread."""
    with contextlib.ExitStack() as stack:
        connection = Connection(stack)
        batch = begin(connection.outbox, frame, tensors, is_decoupled=is_decoupled)
        (request,) = make_requests(batch, tensors)
        batch.mark_returned()
        sender = request.get_response_sender()
        sender.send(InferenceResponse([output]))
        sender.send(flags=FINAL)
        items = [item for answer in connection.read() for item in answer.items]
    assert batch.batches.open == {}
    assert items[-1].is_final
    return items[0]


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_sender_answers_with_the_error_of_the_clients_memory(is_decoupled):
    scene = Scene()
    tensors = DeviceTensors(keeps_on_device=False, regions=scene.regions)
    frame = Execute(1, [1], [], devices={0: DeviceUse({}, {"y": scene.place(size=4)})})
    output = Tensor("y", np.array([[5.0, 6.0]], np.float32))
    item = answer_of_sender(tensors, frame, output, is_decoupled=is_decoupled)

    assert "should be at least 8 bytes" in item.error


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_sender_answers_with_the_error_of_a_driver_that_has_failed(monkeypatch, is_decoupled):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    output = DeviceTensor.of_device("y", output_on_device(scene))
    scene.driver.failing["copy_to_host"] = cuda_driver.LAUNCH_FAILED
    frame = Execute(1, [1], [])
    item = answer_of_sender(scene.tensors, frame, output, is_decoupled=is_decoupled)

    assert "could not be copied" in item.error


def output_on_device(scene):
    with scene.driver.using(0):
        address = scene.driver.allocate(8)
    return DeviceArray(address, 0, FP32.numpy, (1, 2), object(), Order.COMPLETE)


@pytest.mark.parametrize("kind", [ModelExecution, BatchExecution])
def test_outputs_of_an_answer_that_cannot_be_encoded_are_given_up(monkeypatch, kind):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    array = GpuArray.over(output_on_device(scene))
    model = SimpleNamespace(
        takes_gpu_arrays=True,
        execute=lambda _: [InferenceResponse([DeviceTensor.of_device("y", array)])],
        execute_batch=lambda _: {"y": array},
    )
    outbox = Outbox(is_broken=True)
    frame = Execute(1, [1], [], device_wishes={0: DeviceWish()})
    failures = execute(model, frame, scene.tensors, outbox, kind)

    assert [type(error) for error in failures] == [OverflowError]
    assert isinstance(outbox.frames[0], BatchFailure)
    assert len(scene.tensors._exports) == 0


@pytest.mark.parametrize("wishes", [{}, {0: DeviceWish()}])
def test_scalar_of_a_whole_batch_keeps_its_shape(monkeypatch, wishes):
    scene = LentScene(monkeypatch)
    outputs = {"y": [np.array(1, np.float32)]}
    model = SimpleNamespace(takes_gpu_arrays=True, execute_batch=lambda _: outputs)
    outbox = Outbox()
    frame = Execute(1, [1], [], device_wishes=wishes)
    execute(model, frame, scene.tensors, outbox, BatchExecution)

    assert [ref.shape for ref in outbox.frames[0].items[0].outputs] == [()]


@pytest.mark.parametrize("wishes", [{}, {0: DeviceWish(), 1: DeviceWish()}])
def test_whole_batch_may_have_an_array_on_the_device_for_each_request(monkeypatch, wishes):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    arrays = [np.full((1, columns), columns, np.float32) for columns in (3, 1 << 14)]
    outputs = [ComputedByDLPack(scene.driver, array) for array in arrays]
    model = SimpleNamespace(takes_gpu_arrays=True, execute_batch=lambda _: {"y": outputs})
    outbox = Outbox()
    frame = Execute(1, [1, 1], [], device_wishes=wishes)
    failures = execute(model, frame, scene.tensors, outbox, BatchExecution)
    refs = [item.outputs[0] for item in outbox.frames[0].items]

    assert failures == []
    assert [ref.shape for ref in refs] == [(1, 3), (1, 1 << 14)]
    assert len(scene.tensors._exports) == len(wishes)
