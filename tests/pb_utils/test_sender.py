# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import threading

import pytest
from triton_python_backend_utils import InferenceResponse, TritonModelException

from pytriton.runtime.pb_utils.response import InferenceResponseSender
from tests.e2e.waiting import DEADLINE_S
from tests.pb_utils.fakes import FakeContext

FINAL = 1
FIRST, SECOND = InferenceResponse(), InferenceResponse()
MORE_THAN_ONE = "Unable to send response. Non-decoupled model cannot send more than one response."
TOO_EARLY = (
    "Unable to send response. Non-decoupled model cannot send complete final before sending a"
    " response."
)
CLOSED = "Unable to send response. Response sender has been closed."
NOTHING = "Inference Response object must be provided when the response flags is set to zero."
UNSUPPORTED = "Unable to send response. Unsupported flag provided."


def make(*, decoupled):
    context = FakeContext()
    return InferenceResponseSender(context, decoupled), context


def refused(text):
    return pytest.raises(TritonModelException, match=f"^{re.escape(text)}$")


@pytest.mark.parametrize("decoupled", [False, True])
def test_response_with_the_flag_is_sent_at_once_and_closes(decoupled):
    sender, context = make(decoupled=decoupled)
    sender.send(FIRST, FINAL)

    assert context.sent == [(FIRST, True)]
    assert sender.is_closed


def test_coupled_response_waits_for_the_flag():
    sender, context = make(decoupled=False)
    sender.send(FIRST)

    assert context.sent == []
    assert not sender.is_closed
    sender.send(flags=FINAL)
    assert context.sent == [(FIRST, True)]
    assert sender.is_closed


def test_decoupled_responses_go_one_by_one_and_the_flag_may_come_alone():
    sender, context = make(decoupled=True)
    sender.send(FIRST)
    sender.send(response=SECOND, flags=0)
    sender.send(flags=FINAL)

    assert context.sent == [(FIRST, False), (SECOND, False), (None, True)]


def test_decoupled_model_may_send_nothing_but_the_flag():
    sender, context = make(decoupled=True)
    sender.send(flags=FINAL)

    assert context.sent == [(None, True)]


@pytest.mark.parametrize("flags", [0, FINAL])
def test_coupled_model_sends_no_second_response(flags):
    sender, context = make(decoupled=False)
    sender.send(FIRST)
    with refused(MORE_THAN_ONE):
        sender.send(SECOND, flags)

    assert (sender.take_held(), sender.take_held()) == (FIRST, None)
    assert context.sent == []


def test_coupled_model_ends_only_after_a_response():
    sender, _ = make(decoupled=False)
    with refused(TOO_EARLY):
        sender.send(flags=FINAL)

    assert not sender.is_closed


@pytest.mark.parametrize("arguments", [(SECOND,), (SECOND, FINAL), (None, FINAL)])
def test_decoupled_model_sends_nothing_after_the_flag(arguments):
    sender, context = make(decoupled=True)
    sender.send(flags=FINAL)
    with refused(CLOSED):
        sender.send(*arguments)

    assert len(context.sent) == 1


@pytest.mark.parametrize(
    "arguments, text",
    [((SECOND,), MORE_THAN_ONE), ((SECOND, FINAL), MORE_THAN_ONE), ((None, FINAL), CLOSED)],
)
def test_coupled_model_that_was_closed_hears_of_the_second_response_first(arguments, text):
    sender, _ = make(decoupled=False)
    sender.send(FIRST, FINAL)

    with refused(text):
        sender.send(*arguments)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("arguments", [(FIRST,), (FIRST, FINAL), (None, FINAL)])
def test_sender_of_a_failed_call_is_closed(decoupled, arguments):
    sender, context = make(decoupled=decoupled)
    sender.mark_closed()
    with refused(CLOSED):
        sender.send(*arguments)

    assert context.sent == []


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_sending_nothing_is_refused_before_anything_else(decoupled, is_closed):
    sender, _ = make(decoupled=decoupled)
    if is_closed:
        sender.mark_closed()
    for arguments in ((), (None, 0)):
        with refused(NOTHING):
            sender.send(*arguments)


@pytest.mark.parametrize("flags", [2, 3, -1])
def test_other_flags_are_refused(flags):
    sender, _ = make(decoupled=True)
    with refused(UNSUPPORTED):
        sender.send(FIRST, flags)


def test_arguments_of_other_types_are_type_errors():
    sender, _ = make(decoupled=True)
    with pytest.raises(TypeError, match="response must be an InferenceResponse"):
        sender.send("no response")
    with pytest.raises(TypeError, match="flags must be an int"):
        sender.send(FIRST, "final")


def test_returned_response_counts_as_the_last():
    sender, _ = make(decoupled=False)
    sender.count_returned()

    assert sender.is_closed
    with refused(MORE_THAN_ONE):
        sender.send(FIRST)


def test_returned_response_is_no_second_one():
    sender, _ = make(decoupled=False)
    sender.send(FIRST)

    with refused(MORE_THAN_ONE):
        sender.count_returned()


def test_cancellation_is_the_servers_word():
    sender, context = make(decoupled=True)

    assert not sender.is_cancelled()
    context.gone = True
    assert sender.is_cancelled()


def test_flag_of_one_thread_waits_for_the_response_of_another():
    entered, go_on = threading.Event(), threading.Event()

    class SlowContext(FakeContext):
        def send(self, response, *, is_final):
            if response is FIRST:
                entered.set()
                assert go_on.wait(DEADLINE_S)
            super().send(response, is_final=is_final)

    context = SlowContext()
    sender = InferenceResponseSender(context, True)
    threads = [threading.Thread(target=sender.send, args=(FIRST,))]
    threads[0].start()
    assert entered.wait(DEADLINE_S)
    threads.append(threading.Thread(target=sender.send, kwargs={"flags": FINAL}))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert context.sent == [(FIRST, False), (None, True)]
