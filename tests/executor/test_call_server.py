# SPDX-License-Identifier: Apache-2.0
"""What a worker and the processes that it forked call: other models, services, the log."""

from __future__ import annotations

import gc
import os
import socket
import weakref
from pathlib import Path

import numpy as np
import pytest

from pytriton.base.errors import UNEXPECTED, InternalError, NotFoundError, UnavailableError
from pytriton.base.messages import DeviceExport, DeviceWish
from pytriton.runtime.executor import call_server, device_regions
from pytriton.runtime.executor.device_blocks import DeviceLedger, replace_data
from pytriton.runtime.transport import peer_account
from pytriton.runtime.transport.arena import SEGMENT_BYTES, Arena
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    STANDARD_ERROR,
    BatchResult,
    CallCredit,
    CancelCall,
    DeviceNotes,
    Finalized,
    InferCallFrame,
    InferReply,
    Initialized,
    ReadyReport,
    ServiceCall,
    ServiceReply,
    WorkerLogLine,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from tests.executor.worker_rig import WorkerRig, place, response

SMALL = np.arange(6, dtype=np.int32)
LARGE = np.arange(300_000, dtype=np.int32)


@pytest.fixture
def rig():
    made = WorkerRig().start()
    yield made
    made.close()


@pytest.fixture
def forked(rig):
    """The channel of a process that the worker forked."""
    theirs, sent = socket_pair()
    with sent:
        socket.send_fds(rig.far_fork_socket, [b"in"], [sent.fileno()])
    rig.turn()
    assert rig.instance._fork_listener.callers == 1
    channel = MemoryChannel(theirs, Arena())
    yield channel
    channel.close()


@pytest.fixture(params=["worker", "forked"])
def caller(request, rig):
    """Whoever calls: the worker itself, or a process that it forked."""
    return rig.far if request.param == "worker" else request.getfixturevalue("forked")


def call(rig, caller, number=7, **arrays):
    refs, payload = place(caller, **arrays)
    caller.send(InferCallFrame(number, "other", -1, refs), payload)
    rig.turn()
    return rig.services.calls[-1]


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_call_reaches_the_services_and_its_answer_the_caller(rig, caller, array):
    made = call(rig, caller, x=array)
    assert made.frame.model_name == "other"
    assert made.inputs == {"x": array.tobytes()}

    made.sink.on_response(response(y=array + 1), final=True)
    received = caller.receive()

    assert (received.frame.call, received.frame.is_final) == (7, True)
    assert np.array_equal(received.array(received.frame.outputs[0]), array + 1)


def test_output_in_the_instances_own_memory_is_lent_without_a_copy(rig, caller):
    made = call(rig, caller)
    block = rig.memory.arena.allocate(LARGE.nbytes)
    answer = response(y=LARGE)
    whole = np.asarray(block)
    whole[: LARGE.nbytes] = LARGE.view(np.uint8)
    answer.outputs[0].data = whole.data[: LARGE.nbytes]
    made.sink.on_response(answer, final=True)
    received = caller.receive()

    assert received.frame.outputs[0].block == block.id
    assert np.array_equal(received.array(received.frame.outputs[0]), LARGE)


def test_caller_that_could_not_open_memory_gets_outputs_on_the_host(rig):
    wishes = []
    rig.instance.device_ledger.refusal = ""
    owner = DeviceLedger(rig.instance, lambda: None, rig.loop, lambda _: None)
    regions = ({}, {device_regions.add_region(owner): "cannot_open"})
    for number, unopened in enumerate(regions):
        rig.instance.device_ledger.on_notes(DeviceNotes(unopened=unopened))
        rig.far.send(InferCallFrame(number, "other", -1, [], device_wish=DeviceWish()))
        rig.turn()
        wishes.append(rig.services.calls[-1].frame.device_wish)

    assert wishes == [DeviceWish(), None]


def test_caller_in_a_sandbox_and_forked_process_get_outputs_on_the_host(rig, caller):
    rig.instance.device_ledger.refusal = "sandbox"
    caller.send(InferCallFrame(7, "other", -1, [], device_wish=DeviceWish()))
    rig.turn()

    assert rig.services.calls[-1].frame.device_wish is None


def test_output_that_its_owner_has_freed_gives_the_others_back(rig):
    made = call(rig, rig.far)
    owner = rig.instance.device_ledger
    owner.refusal = ""
    exports = {
        name: DeviceExport(1, 4, 0, number, gpu=b"g", allocation_size=4)
        for number, name in enumerate("ab")
    }
    taken = owner.take_all(exports)
    owner.on_notes(DeviceNotes(gone=[1]))
    answer = response(a=SMALL, b=SMALL)
    replace_data(answer.outputs, taken)

    with pytest.raises(UnavailableError, match="is gone"):
        made.sink.on_response(answer, final=True)
    assert owner.lent_count == 0


def test_output_of_an_answer_that_cannot_be_encoded_is_given_back(rig):
    made = call(rig, rig.far)
    owner = rig.instance.device_ledger
    owner.refusal = ""
    answer = response(a=SMALL)
    replace_data(
        answer.outputs, owner.take_all({"a": DeviceExport(1, 4, 0, 1, gpu=b"g", allocation_size=4)})
    )
    answer.parameters = {"large": 1 << 70}

    with pytest.raises(OverflowError):
        made.sink.on_response(answer, final=True)
    assert owner.lent_count == 0


def test_call_that_is_refused_is_answered_with_the_error(rig, caller):
    made = call(rig, caller)
    made.sink.on_refused(NotFoundError("no such model"))

    assert caller.receive().frame == InferReply(7, error="no such model", error_code=2)


def test_call_that_fails_unexpectedly_is_answered_and_logged(rig, caller, caplog):
    rig.services.refusal = KeyError("oops")
    caller.send(InferCallFrame(7, "other", -1, []))
    rig.turn()

    assert caller.receive().frame == InferReply(7, error=UNEXPECTED, error_code=1)
    assert "error in the server while it began a call of model other" in caplog.text
    assert "KeyError: 'oops'" in caplog.text


def test_error_ends_a_call(rig, caller):
    made = call(rig, caller)
    made.sink.on_error(UnavailableError("busy"))
    made.sink.on_error(InternalError("again"))
    made.sink.on_response(response(), final=True)

    assert caller.receive().frame == InferReply(7, error="busy", error_code=4)
    assert caller.receive(socket.MSG_DONTWAIT) is None


def test_error_of_a_decoupled_model_need_not_end_a_call(rig, caller):
    made = call(rig, caller)
    made.sink.on_error(UnavailableError("busy"), final=False)
    made.sink.on_response(response(), final=True)

    assert caller.receive().frame == InferReply(7, None, False, "busy", 4)
    assert caller.receive().frame == InferReply(7, [])


def test_bare_end_is_passed_on(rig, caller):
    made = call(rig, caller)
    made.sink.on_response(response(), final=False)
    made.sink.on_response(None, final=True)

    assert caller.receive().frame == InferReply(7, [], is_final=False)
    assert caller.receive().frame == InferReply(7, None)


def test_caller_that_takes_nothing_holds_the_called_model_back(rig, caller):
    made = call(rig, caller)
    for _ in range(RESPONSE_WINDOW - 1):
        made.sink.on_response(response(), final=False)
    assert made.events == []
    made.sink.on_response(response(), final=False)
    made.sink.on_response(response(), final=False)
    assert made.events == ["pause"]

    caller.send(CallCredit(7, 1))
    rig.turn()
    assert made.events == ["pause"]
    caller.send(CallCredit(7, 1))
    rig.turn()

    assert made.events == ["pause", "resume"]


def test_call_can_be_given_up_until_it_is_over(rig, caller):
    made = call(rig, caller)
    caller.send(CancelCall(7))
    rig.turn()
    assert made.events == ["cancel"]
    made.sink.on_error(InternalError("cancelled"))
    assert caller.receive().frame.error == "cancelled"
    caller.send(CancelCall(7))
    caller.send(CallCredit(7, 1))
    rig.turn()

    assert made.events == ["cancel"]


def test_answer_without_room_is_an_error_that_can_be_answered(rig, caller):
    rig.memory.arena.limit_bytes = SEGMENT_BYTES
    made = call(rig, caller)
    with pytest.raises(UnavailableError, match="no room for a tensor") as refused:
        made.sink.on_response(response(y=np.zeros(SEGMENT_BYTES + 1, np.uint8)), final=False)
    made.sink.on_error(refused.value)  # as the engine does with what cannot be delivered
    reply = caller.receive().frame

    assert "no room for a tensor" in reply.error
    assert reply.is_final


def test_answers_to_a_caller_that_does_not_read_wait(rig, caller):
    made = call(rig, caller)
    payload = np.zeros(30_000, np.uint8)
    for _ in range(100):
        made.sink.on_response(response(y=payload), final=False)
    made.sink.on_response(None, final=True)
    replies = []
    while not (replies and replies[-1].is_final):
        replies.append(caller.receive().frame)
        rig.turn(1)

    assert len(replies) == 101


def test_service_answers_now_or_later_or_not_at_all(rig, caller):
    caller.send(ServiceCall(3, "is_model_ready", {"name": "other"}))
    caller.send(ServiceCall(0, "increment", {"metric": 1, "value": 2.0}))
    rig.turn()
    (first, second) = rig.services.served
    assert first[:2] == ("is_model_ready", {"name": "other"})
    assert second == ("increment", {"metric": 1, "value": 2.0}, None)

    first[2](True, None)
    assert caller.receive().frame == ServiceReply(3, True)
    first[2](None, "it failed")
    assert caller.receive().frame == ServiceReply(3, None, "it failed")


@pytest.mark.parametrize(
    "refusal, text", [(NotFoundError("no"), "no"), (ValueError("bad"), UNEXPECTED)]
)
def test_service_that_raises_is_answered_where_an_answer_is_wanted(rig, caller, refusal, text):
    rig.services.refusal = refusal
    caller.send(ServiceCall(0, "set", {}))
    caller.send(ServiceCall(3, "value", {}))
    rig.turn()

    assert caller.receive().frame == ServiceReply(3, None, text)


@pytest.mark.parametrize(
    "frame", [BatchResult(1, 0, 0, []), Initialized(), ReadyReport(1, True), Finalized()]
)
def test_forked_process_that_is_no_worker_is_shown_out(rig, forked, caplog, frame):
    forked.send(frame)
    rig.turn()

    assert rig.instance._fork_listener.callers == 0
    assert "expected a call or a line of the log, got a frame" in caplog.text


def is_shown_out(rig, caller):
    """Whether the server has ended the connection, and let all calls go."""
    if caller is rig.far:
        return rig.deaths == ["its answer could not be read"]
    return rig.instance._fork_listener.callers == 0 and not rig.deaths


def test_number_of_a_call_that_is_open_is_not_given_again(rig, caller, caplog):
    made = call(rig, caller, 7)
    caller.send(InferCallFrame(7, "other", -1, []))
    rig.turn()

    assert is_shown_out(rig, caller)
    assert made.events == ["cancel"]
    assert "expected a call with a new number, got 7 again" in caplog.text


def test_number_of_open_calls_is_bounded(rig, caller, caplog, monkeypatch):
    monkeypatch.setattr(peer_account, "MAX_CALLS", 3)
    for number in range(1, 4):
        call(rig, caller, number).sink.on_response(None, final=True)
    made = [call(rig, caller, number) for number in (4, 5)]
    caller.send(ServiceCall(6, "is_model_ready", {"name": "other"}))
    caller.send(ServiceCall(0, "set", {"metric": 1}))
    rig.turn()
    assert not rig.deaths
    caller.send(ServiceCall(7, "is_model_ready", {"name": "other"}))
    rig.turn()

    assert is_shown_out(rig, caller)
    assert [each.events for each in made] == [["cancel"], ["cancel"]]
    assert "expected at most 3 open calls" in caplog.text


def test_inputs_of_open_calls_are_bounded(rig, caller, caplog, monkeypatch):
    monkeypatch.setattr(peer_account, "MAX_CALL_BYTES", 50_000)
    small = np.zeros(5000, np.int32)
    for number in range(1, 4):
        caller.send(InferCallFrame(number, "other", -1, []))
        refs, payload = place(caller, x=small)
        caller.send(InferCallFrame(number + 10, "other", -1, refs), payload)
        rig.turn()

    assert is_shown_out(rig, caller)
    assert "with inputs of 50000 bytes" in caplog.text


def test_input_that_is_not_in_its_message_ends_the_caller(rig, caller, caplog):
    for ref in (TensorRef("x", 11, (1,), 0, 4), TensorRef("x", 11, (1,), 0, 4, block=99)):
        if not is_shown_out(rig, caller):
            caller.send(InferCallFrame(7, "other", -1, [ref]))
            rig.turn()

    assert is_shown_out(rig, caller)
    assert not rig.services.calls
    assert "expected an input whose bytes are there" in caplog.text


def test_credit_of_a_caller_does_not_widen_its_window(rig, caller):
    made = call(rig, caller)
    caller.send(CallCredit(7, 1 << 32))
    rig.turn()
    for _ in range(RESPONSE_WINDOW):
        made.sink.on_response(response(), final=False)

    assert made.events == ["pause"]


def test_log_line_reaches_the_log(rig, caller):
    caller.send(WorkerLogLine("INFO", "hello", "model.py", 3))
    rig.turn()

    assert rig.services.lines == ["hello"]


def test_calls_of_a_worker_that_dies_are_given_up(rig, caller):
    made = call(rig, caller)
    caller.send(ServiceCall(3, "load_model", {}))
    rig.turn()
    rig.exit("killed by SIGKILL (9)")

    assert made.events == ["cancel"]
    assert rig.services.closed == 1
    made.sink.on_response(response(), final=False)  # too late, and nobody is hurt
    made.sink.on_error(InternalError("too late"))
    rig.services.served[0][2](None, None)


def test_forked_process_that_ends_takes_only_its_own_calls_along(rig, forked):
    own = call(rig, rig.far, 1)
    other = call(rig, forked, 1)
    forked.close()
    rig.turn()

    assert (own.events, other.events) == ([], ["cancel"])
    assert rig.instance._fork_listener.callers == 0
    assert rig.deaths == []
    own.sink.on_response(None, final=True)
    assert rig.far.receive().frame == InferReply(1, None)


def test_forked_process_that_talks_nonsense_is_shown_out(rig, forked, caplog):
    forked.link.send(b"\xff" * 40)
    rig.turn()

    assert rig.instance._fork_listener.callers == 0
    assert rig.deaths == []
    assert "a forked process: a message could not be read" in caplog.text


def test_what_is_no_socket_does_not_come_in(rig, caplog):
    read, write = os.pipe()
    socket.send_fds(rig.far_fork_socket, [b"in"], [read])
    os.close(read)
    rig.turn()

    assert rig.instance._fork_listener.callers == 0
    assert "a file descriptor that is not a socket" in caplog.text
    with pytest.raises(BrokenPipeError):  # nobody holds the other end any more
        os.write(write, b"x")
    os.close(write)


def test_socket_of_another_kind_does_not_come_in(rig, caplog):
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    socket.send_fds(rig.far_fork_socket, [b"in"], [far.fileno()])
    near.close()
    far.close()
    rig.turn()

    assert rig.instance._fork_listener.callers == 0
    assert "a socket of another kind" in caplog.text


def test_worker_whose_processes_break_rules_gets_no_more_channels(rig, caplog, monkeypatch):
    monkeypatch.setattr(call_server, "MAX_BREACHES", 3)
    good, sent = socket_pair()
    with sent:
        socket.send_fds(rig.far_fork_socket, [b"in"], [sent.fileno()])
    for _ in range(3):
        theirs, sent = socket_pair()
        with sent, theirs:
            socket.send_fds(rig.far_fork_socket, [b"in"], [sent.fileno()])
            theirs.send(b"\xff" * 40)
            rig.turn()
    with pytest.raises(BrokenPipeError):
        rig.far_fork_socket.send(b"in")
    channel = MemoryChannel(good, Arena())
    assert call(rig, channel).frame.call == 7
    channel.close()

    assert caplog.text.count("a forked process: a message could not be read") == 3
    assert caplog.text.count("no more that it forks may call models") == 1


def test_number_of_forked_processes_is_bounded(rig, monkeypatch, caplog):
    monkeypatch.setattr(call_server, "MAX_CALLERS", 2)
    kept = []
    for _ in range(4):
        theirs, sent = socket_pair()
        kept.append(theirs)
        with sent:
            socket.send_fds(rig.far_fork_socket, [b"in"], [sent.fileno()])
        rig.turn()

    assert rig.instance._fork_listener.callers == 2
    assert caplog.text.count("a worker's fork socket passed more than 2 sockets") == 1
    for theirs in kept:
        theirs.close()


def test_only_one_pipe_is_read_as_standard_error(rig, caplog):
    reader, writer = os.pipe()
    with Path(os.devnull).open("rb") as file:
        for descriptor in (file.fileno(), reader, reader):
            socket.send_fds(rig.far_fork_socket, [STANDARD_ERROR + b"m"], [descriptor])
            rig.turn()

    assert len(rig.instance._fork_listener._errors) == 1
    assert "a worker's fork socket passed more than one pipe" in caplog.text
    os.close(reader)
    os.close(writer)


def test_worker_that_closes_its_door_still_calls(rig):
    rig.far_fork_socket.close()
    rig.turn()
    made = call(rig, rig.far)
    made.sink.on_response(None, final=True)

    assert rig.far.receive().frame == InferReply(7, None)


def test_call_that_is_over_is_freed_at_once(rig, caller):
    made = call(rig, caller)
    freed = weakref.ref(made)
    rig.services.calls.clear()
    gc.disable()
    try:
        made.sink.on_response(response(y=SMALL), final=True)
        del made

        assert freed() is None
    finally:
        gc.enable()
