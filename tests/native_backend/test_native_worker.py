# SPDX-License-Identifier: Apache-2.0
"""A worker process with a compiled backend: the frames that it sends, and how it ends."""

from __future__ import annotations

import os
import pathlib
import subprocess

import numpy as np
import pytest

from pytriton.base.errors import ErrorCode
from pytriton.base.log_switches import LogSwitches
from pytriton.runtime.native_backend.worker import CODE_SETTING
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    BatchResult,
    Cancel,
    CheckReady,
    Credit,
    LogChange,
    ReadyReport,
    ResponsesFrame,
)
from tests.e2e.waiting import eventually
from tests.native_backend import building
from tests.native_backend.native_rig import (
    COMPILED,
    PYTHON,
    WRITTEN,
    NativeRig,
    compile_backend,
    config_of,
    known_backend,
)
from tests.python_backend.worker_rig import ZygoteRig, is_alive

pytestmark = pytest.mark.skipif(bool(building.missing()), reason=building.missing())

IDENTITY = config_of({"FP32": "FP32"}, {"OUT_FP32": "FP32"}, max_batch_size=64)
STRINGS = config_of({"BYTES": "STRING"}, {"OUT_BYTES": "STRING"}, max_batch_size=64)
REPEAT = config_of(
    {"IN": "INT32", "DELAY": "UINT32", "WAIT": "UINT32"}, {"OUT": "INT32", "IDX": "UINT32"}
)
PLAIN = config_of({"x": "INT32"}, {"y": "INT32"}, max_batch_size=8)
X = np.arange(4, dtype=np.float32)[None]
N = np.array([[5]], np.int32)
RELEASES = """
EXECUTE
{
  for (uint32_t i = 0; i < count; i++) TRITONBACKEND_RequestRelease(requests[i], 1);
  return NULL;
}
"""


@pytest.fixture(scope="module")
def zygote():
    rig = ZygoteRig()
    yield rig
    rig.close()


@pytest.fixture(params=[COMPILED, WRITTEN])
def start(request, zygote):
    rigs = []

    def start_one(library, config, **fields):
        environment = fields.pop("environment", {CODE_SETTING: request.param})
        rigs.append(NativeRig(zygote, library, config, environment=environment, **fields))
        return rigs[-1]

    yield start_one
    for rig in rigs:
        rig.close()


@pytest.fixture(params=[COMPILED, WRITTEN, PYTHON])
def identity(request, zygote):
    environment = {CODE_SETTING: request.param}
    rig = NativeRig(zygote, known_backend("identity"), IDENTITY, environment=environment)
    yield rig.start()
    rig.close()


def repeated(count, delay_ms=0):
    return {
        "IN": np.arange(count, dtype=np.int32),
        "DELAY": np.full(count, delay_ms, np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }


def items(rig):
    """The next items of responses, and whether the batch returned with them."""
    frame = rig.hear(ResponsesFrame).frame
    return frame.items, frame.returned_batch


# Batches


def test_requests_of_a_batch_are_answered_with_one_tensor(identity):
    identity.execute(*[{"FP32": X + k} for k in range(5)])
    received = identity.hear(BatchResult)
    (ref,) = received.frame.outputs

    assert ref.shape == (5, 4)
    assert ref.block == 0
    assert (received.array(ref) == X + np.arange(5)[:, None]).all()


def test_large_outputs_go_out_by_reference(identity):
    large = np.arange(1 << 15, dtype=np.float32).reshape(2, -1)
    identity.execute({"FP32": large}, {"FP32": large + 1})
    received = identity.hear(BatchResult)
    (ref,) = received.frame.outputs
    (block,) = received.frame.memory.blocks

    assert ref.block == block.id
    assert block.is_given
    assert (received.array(ref) == np.concatenate([large, large + 1])).all()


def test_records_of_requests_are_used_again(identity):
    for shape in ((1, 4), (2, 4), (1, 3), (1, 0), (1, 4)):
        for first in (1, 2):
            array = np.full(shape, first, np.float32)
            (answer,) = identity.run({"FP32": array}, ids={0: "x"}, parameters={0: {"p": first}})
            assert answer["OUT_FP32"].tolist() == array.tolist()
            identity.execute({"FP32": array})
            received = identity.hear(BatchResult, ResponsesFrame)  # none of the parameters before
            assert isinstance(received.frame, BatchResult)


def test_different_shapes_are_answered_one_by_one(start):
    rig = start(known_backend("identity"), STRINGS).start()
    first, second = (np.array([each], object) for each in ([b"a", b""], [b"long" * 9, b"c"]))
    answers = rig.run({"BYTES": first}, {"BYTES": second})

    assert [each["OUT_BYTES"].tolist() for each in answers] == [first.tolist(), second.tolist()]


def test_response_parameters_go_with_their_response(identity):
    parameters = {"number": -3, "flag": True, "half": 0.5, "word": "ä"}
    identity.execute({"FP32": X}, {"FP32": X}, parameters={1: parameters})
    received = identity.hear(ResponsesFrame)

    assert [item.parameters for item in received.frame.items] == [None, parameters]
    assert received.frame.returned_batch == 1


def test_released_request_may_be_rescheduled(start, tmp_path):
    library = compile_backend(tmp_path, RELEASES.replace("requests[i], 1", "requests[i], 2"))
    rig = start(library, PLAIN).start()

    assert rig.run({"x": N}, {"x": N}) == ["rescheduled", "rescheduled"]


# Threads of a backend


def test_responses_of_a_thread_are_sent_when_they_are_made(start):
    rig = start(known_backend("repeat"), REPEAT, is_decoupled=True).start()
    rig.execute(repeated(3))
    found = []
    is_returned = False
    while len(found) < 4 or not is_returned:
        received = rig.hear(ResponsesFrame)
        is_returned = is_returned or received.frame.returned_batch == 1
        for item in received.frame.items:
            arrays = {ref.name: received.array(ref).item() for ref in item.outputs or ()}
            found.append((arrays, item.is_final))

    assert found == [
        ({"OUT": 0, "IDX": 0}, False),
        ({"OUT": 1, "IDX": 1}, False),
        ({"OUT": 2, "IDX": 2}, False),
        ({}, True),
    ]


ANSWERS_IN_THREADS = """
static void* answer(void* argument)
{
  TRITONBACKEND_Request* request = argument;
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  TRITONBACKEND_Input* input;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  const int64_t shape[2] = {1, 1};
  const void* from;
  void* to;
  uint64_t size;
  int64_t id = 0;
  TRITONBACKEND_ResponseNew(&response, request);
  TRITONBACKEND_RequestInput(request, "x", &input);
  TRITONBACKEND_InputBuffer(input, 0, &from, &size, &type, &id);
  TRITONBACKEND_ResponseOutput(response, &output, "y", TRITONSERVER_TYPE_INT32, shape, 2);
  TRITONBACKEND_OutputBuffer(output, &to, 4, &type, &id);
  memcpy(to, from, 4);
  TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
  TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL);
  return NULL;
}
EXECUTE
{
  for (uint32_t i = 0; i < count; i++) {
    pthread_t thread;
    pthread_create(&thread, NULL, answer, requests[i]);
    pthread_detach(thread);
  }
  return NULL;
}
"""


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_every_request_is_answered_once_while_execute_returns(start, tmp_path, is_decoupled):
    library = compile_backend(tmp_path, ANSWERS_IN_THREADS)
    rig = start(library, PLAIN, is_decoupled=is_decoupled).start()
    for batch in range(1, 200):
        arrays = [np.array([[batch * 10 + k]], np.int32) for k in range(6)]
        answers = rig.run(*[{"x": array} for array in arrays])  # asserts that each has one

        assert [each["y"].item() for each in answers] == [batch * 10 + k for k in range(6)]
    assert rig.finish() == 0


def hears_just(rig, count, *, is_running=False):
    """Hear that many responses, however long they take; whether no more come.

    Also hear that `execute` returned if it is running: that may come before, amid or after them.
    """
    while count > 0 or is_running:
        frame = rig.hear(ResponsesFrame).frame
        count -= len(frame.items)
        is_running = is_running and not frame.returned_batch
    return count == 0 and rig.hears_nothing(0.3)


def test_thread_waits_for_a_client_that_is_behind(start):
    rig = start(known_backend("repeat"), REPEAT, is_decoupled=True).start()
    rig.execute(repeated(RESPONSE_WINDOW + 10))
    assert hears_just(rig, RESPONSE_WINDOW, is_running=True)
    rig.say(Credit(1, 0, 4))
    assert hears_just(rig, 4)
    rig.say(Cancel(1, 0))

    assert hears_just(rig, 7)  # nobody waits for a client that has gone: the others, and the end


ONE_THREAD = """
typedef struct { TRITONBACKEND_ResponseFactory* factory; int32_t left; } Stream;
static Stream streams[16];
static int started, known, is_running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void answer(Stream* stream)
{
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  const int64_t shape[2] = {1, 1};
  void* to;
  int64_t id = 0;
  TRITONBACKEND_ResponseNewFromFactory(&response, stream->factory);
  TRITONBACKEND_ResponseOutput(response, &output, "y", TRITONSERVER_TYPE_INT32, shape, 2);
  TRITONBACKEND_OutputBuffer(output, &to, 4, &type, &id);
  *(int32_t*)to = stream->left;
  TRITONBACKEND_ResponseSend(response, 0, NULL);
}
static void* run(void* argument)
{
  for (;;) {
    pthread_mutex_lock(&lock);
    known = started;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < known; i++) {
      if (streams[i].left > 0) {
        answer(&streams[i]);
        streams[i].left--;
      } else if (streams[i].left == 0) {
        streams[i].left = -1;
        TRITONBACKEND_ResponseFactorySendFlags(
            streams[i].factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
        TRITONBACKEND_ResponseFactoryDelete(streams[i].factory);
      }
    }
  }
  return NULL;
}
EXECUTE
{
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Input* input;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    const void* from;
    uint64_t size;
    int64_t id = 0;
    TRITONBACKEND_RequestInput(requests[i], "x", &input);
    TRITONBACKEND_InputBuffer(input, 0, &from, &size, &type, &id);
    streams[started].left = *(const int32_t*)from;
    TRITONBACKEND_ResponseFactoryNew(&streams[started].factory, requests[i]);
    TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL);
    pthread_mutex_lock(&lock);
    started++;
    pthread_mutex_unlock(&lock);
  }
  if (!is_running) {
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    is_running = 1;
  }
  return NULL;
}
"""


def test_thread_of_several_requests_waits_for_no_client(start, tmp_path):
    rig = start(compile_backend(tmp_path, ONE_THREAD), PLAIN, is_decoupled=True).start()
    found: dict[int, list[int]] = {}

    def hear(batch, count):
        while len(found.setdefault(batch, [])) < count:
            received = rig.hear(ResponsesFrame)
            for item in received.frame.items:
                refs = item.outputs or ()
                values = [received.array(ref).item() for ref in refs]
                found.setdefault(item.batch, []).extend(values or [-1])
                rig.say(Credit(item.batch, 0, 1 if item.batch != slow else 0))

    slow = rig.execute({"x": np.array([[200]], np.int32)})
    hear(slow, RESPONSE_WINDOW)
    for left in (100, 300):  # the second one while responses to the slow client are queued
        quick = rig.execute({"x": np.array([[left]], np.int32)})
        hear(quick, left + 1)
        assert found[quick] == [*range(left, 0, -1), -1]
    assert found[slow] == list(range(200, 200 - RESPONSE_WINDOW, -1))
    rig.say(Credit(slow, 0, 20))
    hear(slow, RESPONSE_WINDOW + 20)
    rig.say(Credit(slow, 0, RESPONSE_WINDOW))
    hear(slow, 2 * RESPONSE_WINDOW + 20)
    rig.say(Credit(slow, 0, RESPONSE_WINDOW))
    hear(slow, 201)

    assert found[slow] == [*range(200, 0, -1), -1]


def test_worker_ends_although_a_thread_waits_for_its_client(start):
    rig = start(known_backend("repeat"), REPEAT, is_decoupled=True).start()
    rig.execute(repeated(RESPONSE_WINDOW + 10))
    assert hears_just(rig, RESPONSE_WINDOW, is_running=True)

    assert rig.finish_quietly() == 0


def test_process_ends_while_threads_still_call(start, tmp_path):
    source = """
    static void* call(void* unused)
    {
      const char* text;
      for (;;) {
        TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "again");
        text = TRITONSERVER_ErrorMessage(error);
        TRITONSERVER_ErrorDelete(error);
      }
      return (void*)text;
    }
    EXPORT TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
    {
      pthread_t thread;
      for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, call, NULL);
      return NULL;
    }
    """
    rig = start(compile_backend(tmp_path, source + RELEASES), PLAIN).start()

    assert rig.finish() == 0


# Loading


def test_library_that_is_not_there_is_described(start):
    path = known_backend("nothing")
    report = start(path, PLAIN).initialized()

    words = f"unable to load shared library: {path}: [Errno 2] No such file or directory: '{path}'"
    assert (report.error, report.error_code) == (words, ErrorCode.NOT_FOUND)


def test_library_of_another_machine_is_described(start, tmp_path):
    path = tmp_path / "libtriton_x.so"
    image = bytearray(pathlib.Path(known_backend("identity")).read_bytes())
    other = {"x86_64": (183, "aarch64"), "aarch64": (62, "x86_64")}[os.uname().machine]
    image[18] = other[0]
    path.write_bytes(image)
    report = start(str(path), PLAIN).initialized()

    assert report.error == (
        f"unable to load shared library: {path}: it was compiled for {other[1]}, and this machine"
        f" is {os.uname().machine}"
    )


def test_symbol_of_nobody_is_named(start, tmp_path):
    source = "extern int nobody(void);\nEXECUTE { nobody(); return NULL; }"
    path = compile_backend(tmp_path, source)
    report = start(path, PLAIN).initialized()

    assert report.error == f"unable to load shared library: {path}: undefined symbol: nobody"


def test_backend_is_connected_to_us_wherever_it_was_linked_to(start, tmp_path):
    """As with a backend from NVIDIA's wheel, which names its own copy of the server by a path."""
    other = tmp_path / "libtritonserver-1234abcd.so"
    (tmp_path / "other.c").write_text(
        "#include <stdlib.h>\nvoid* TRITONBACKEND_RequestRelease(void) { abort(); }\n"
    )
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libtritonserver-1234abcd.so", "-o", other]
    subprocess.run([*command, tmp_path / "other.c"], check=True)
    library = compile_backend(tmp_path, RELEASES, str(other), f"-Wl,-rpath,{tmp_path}")
    rig = start(library, PLAIN).start()

    assert rig.run({"x": N}) == ["the backend released the request without a final response"]


def test_error_at_the_start_keeps_its_code_and_text(start, tmp_path):
    source = """
    EXPORT TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
    {
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "not \\xff today");
    }
    """
    report = start(compile_backend(tmp_path, source + RELEASES), PLAIN).initialized()

    assert (report.error, report.error_code) == ("not \\xff today", ErrorCode.UNAVAILABLE)


@pytest.mark.parametrize(
    "compiler, lines",
    [
        (
            "false",
            ["calls of the backend for each request go to Python, which is slower: false failed: "],
        ),
        ("no-such-compiler", []),
    ],
)
def test_model_is_served_where_nothing_can_be_compiled(monkeypatch, tmp_path, compiler, lines):
    monkeypatch.setenv("PYTRITON_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    zygote = ZygoteRig()
    rig = NativeRig(zygote, known_backend("identity"), IDENTITY).start()
    (answer,) = rig.run({"FP32": X})
    status = rig.finish()
    rig.close()
    zygote.close()

    assert answer["OUT_FP32"].tolist() == X.tolist()
    assert [line.message for line in rig.lines] == lines
    assert status == 0


# Readiness, logs, end


def test_backend_says_whether_its_instance_is_ready(start, tmp_path):
    source = """
    static int is_tired = 0;
    EXPORT TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance)
    {
      if (!is_tired) return NULL;
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "tired");
    }
    EXECUTE { is_tired = 1; return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "done"); }
    """
    rig = start(compile_backend(tmp_path, source), PLAIN)
    report = rig.initialized()
    answers = []
    for call in (1, 2):
        rig.say(CheckReady(call))
        answers.append(rig.hear(ReadyReport).frame.is_ready)
        rig.run({"x": N})

    assert report.has_ready_check
    assert answers == [True, False]
    assert rig.log() == "model 'm' is not ready: tired"


def test_log_lines_of_the_backend_follow_the_settings(start, tmp_path):
    source = """
    EXECUTE
    {
      log_text(TRITONSERVER_LOG_INFO, "info");
      log_text(TRITONSERVER_LOG_VERBOSE, "verbose");
      log_text(TRITONSERVER_LOG_ERROR,
               TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE) ? "on" : "off");
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "done");
    }
    """
    rig = start(compile_backend(tmp_path, source), PLAIN).start()
    rig.run({"x": N})
    rig.say(LogChange(LogSwitches(info=False, verbose=1)))
    rig.run({"x": N})
    lines = [(line.level, line.message, line.file, line.line) for line in rig.lines]

    assert lines == [
        ("INFO", "info", "/folder/source.c", 7),
        ("ERROR", "off", "/folder/source.c", 7),
        ("VERBOSE", "verbose", "/folder/source.c", 7),
        ("ERROR", "on", "/folder/source.c", 7),
    ]


def test_log_lines_of_the_backend_name_its_requests(start, tmp_path):
    source = """
    EXECUTE
    {
      log_text(TRITONSERVER_LOG_INFO, "info");
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "done");
    }
    """
    rig = start(compile_backend(tmp_path, source), PLAIN).start()
    rig.run({"x": N}, ids={0: "seven"})
    rig.run({"x": N})

    assert [line.request_ids for line in rig.lines] == [["seven"], []]


def test_worker_ends_with_the_server(start):
    rig = start(known_backend("identity"), IDENTITY).start()
    rig.channel.close()

    assert eventually(lambda: not is_alive(rig.pid))
