# SPDX-License-Identifier: Apache-2.0
"""Processes that read JSON: what comes of a request, and of a process that ends."""

from __future__ import annotations

import asyncio
import base64
import json
import threading

import msgspec
import psutil
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.base.model_spec import SequenceSpec
from pytriton.protocol.kserve_json import parse_infer
from pytriton.serving.server.api.background import WORKERS
from pytriton.serving.server.codec import child, pool
from pytriton.serving.server.codec.messages import (
    Job,
    JobKind,
    ParsedModel,
    decode_job,
    encode,
)
from pytriton.serving.server.codec.pool import CodecPool, CodecProcess
from tests.e2e.waiting import DEADLINE_S
from tests.server.http_models import InlineProcess
from tests.wire.specs import model_spec, tensor_spec

SPEC = model_spec(
    tensor_spec("a", dtypes.FP32, (-1,), batched=False),
    tensor_spec("b", dtypes.BYTES, (1,), batched=False),
    name="m",
    outputs=("o", "p"),
    max_batch_size=0,
)
LIMIT = 1 << 30


def infer_body(**more):
    inputs = [
        {"name": "b", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
        {"name": "a", "datatype": "FP32", "shape": [3], "data": [1, 2.5, 3]},
    ]
    head = json.dumps({"id": "x", "inputs": inputs, **more}).encode()
    return head, head + b"\1\0\0\0y"


def fields(request):
    """What is in a request, so that it can be compared."""
    inputs = {name: (it.shape, bytes(it.data)) for name, it in request.inputs.items()}
    return {**msgspec.structs.asdict(request), "inputs": inputs}


def run(use, make_process=InlineProcess):
    """Have a pool used by a coroutine function, and ended."""

    async def main():
        codec = CodecPool(asyncio.get_running_loop(), make_process=make_process)
        try:
            return await use(codec)
        finally:
            codec.close()

    return asyncio.run(main())


def test_process_reads_what_the_server_would_read():
    parameters = {"p": 1.5, "q": "text", "priority": 3, "timeout": 7, "sequence_id": 5}
    outputs = [{"name": "p", "parameters": {"binary_data": True}}, {"name": "o"}]
    head, body = infer_body(parameters=parameters, outputs=outputs)

    async def read(codec):
        pid_before = await codec.infer(body, len(head), SPEC, LIMIT)
        pids = [process.pid for process in codec._idle]
        again = await codec.infer(body, len(head), SPEC, LIMIT)
        assert [process.pid for process in codec._idle] == pids
        return pids, pid_before, again

    pids, first, second = run(read, pool.CodecProcess)

    expected, output_format = parse_infer(body, len(head), SPEC)
    for request, chosen in (first, second):
        assert fields(request) == fields(expected)
        assert chosen == output_format
    assert not psutil.pid_exists(pids[0])


def test_generate_and_load_are_read():
    async def read(codec):
        request = await codec.generate(b'{"a":[1,2],"p":"x"}', SPEC)
        content = base64.b64encode(b"code").decode()
        parameters = {"config": "{}", "file:1/model.py": content, "file:empty": ""}
        return request, await codec.load(json.dumps({"parameters": parameters}).encode())

    request, form = run(read)

    assert bytes(request.inputs["a"].data) == b"\0\0\x80\x3f\0\0\0\x40"
    assert request.fields.parameters == {"p": "x"}
    assert form == ("{}", {"1/model.py": b"code", "empty": b""})


@pytest.mark.parametrize(
    "text,kind,words",
    [
        (b" ", InternalError, "The document is empty. at 1"),
        (b"{}", InternalError, "Unable to parse 'inputs'"),
        (b'{"inputs":[],"parameters":{"triton_x":1}}', InvalidArgumentError, "reserved"),
    ],
)
def test_mistake_is_an_error_of_its_kind(text, kind, words):
    with pytest.raises(kind, match=words):
        run(lambda codec: codec.infer(text, len(text), SPEC, LIMIT))


def test_request_with_too_many_names_is_refused(monkeypatch):
    monkeypatch.setattr(child, "MAX_HEAD_BYTES", 200)
    text = json.dumps({"inputs": [], "parameters": {f"p{n}": n for n in range(100)}}).encode()

    with pytest.raises(InvalidArgumentError, match="expected at most 200 bytes of names, shapes"):
        run(lambda codec: codec.infer(text, len(text), SPEC, LIMIT))


def test_error_text_is_cut():
    text = json.dumps(
        {"inputs": [{"name": "n" * 100_000, "datatype": "X", "shape": [1], "data": []}]}
    )

    with pytest.raises(InvalidArgumentError) as caught:
        run(lambda codec: codec.infer(text.encode(), len(text), SPEC, LIMIT))

    assert len(caught.value.message) == child.MAX_MESSAGE_CHARACTERS


class DyingProcess(InlineProcess):
    made = 0

    def __init__(self):
        DyingProcess.made += 1
        self.dies = DyingProcess.made == 1

    def run(self, job, text):
        if self.dies:
            raise EOFError
        return super().run(job, text)


def test_process_that_ends_fails_its_job_only():
    DyingProcess.made = 0

    async def read(codec):
        with pytest.raises(UnavailableError, match="ended before it was done"):
            await codec.generate(b'{"a":1}', SPEC)
        return await codec.generate(b'{"a":1}', SPEC)

    assert run(read, DyingProcess).inputs.keys() == {"a"}


def test_idle_process_that_was_killed_fails_no_job():
    made = []

    def make():
        made.append(CodecProcess())
        return made[-1]

    async def read(codec):
        await codec.generate(b'{"a":1}', SPEC)
        killed = psutil.Process(made[0].pid)
        killed.kill()
        answer = await codec.generate(b'{"a":1}', SPEC)
        assert not killed.is_running()
        return answer

    assert run(read, make).inputs.keys() == {"a"}
    assert len(made) == 2


@pytest.mark.parametrize("error", [BlockingIOError, MemoryError])
def test_process_that_cannot_be_started_fails_its_job(error):
    def fail():
        raise error("no more processes")

    with pytest.raises(UnavailableError, match=r"no process could be started .* no more processes"):
        run(lambda codec: codec.generate(b"{}", SPEC), fail)


def test_process_whose_tensors_find_no_memory_is_ended():
    made = []

    def make():
        made.append(InlineProcess())
        return made[-1]

    def refuse(size, header_bytes):
        raise UnavailableError("no memory")

    async def read(codec):
        text = b'{"b":"' + b"x" * (2 << 20) + b'"}'
        with pytest.raises(UnavailableError, match="no memory"):
            await codec.generate(text, SPEC, refuse)
        return repr(codec)

    assert run(read, make) == "<CodecPool 0 busy 0 idle>"


class HeldProcess(InlineProcess):
    """Works when the test lets it, or ends when it is killed."""

    def __init__(self):
        self.began = threading.Event()
        self.gate = threading.Event()
        self.was_killed = False

    def run(self, job, text):
        self.began.set()
        assert self.gate.wait(DEADLINE_S)
        if self.was_killed:
            raise EOFError
        return super().run(job, text)

    def kill(self):
        self.was_killed = True
        self.gate.set()


def test_few_are_read_at_once_and_one_whose_client_left_never():
    made = []
    began = threading.Semaphore(0)

    class Counted(HeldProcess):
        def run(self, job, text):
            began.release()
            return super().run(job, text)

    def make():
        made.append(Counted())
        return made[-1]

    async def read(codec):
        jobs = [asyncio.create_task(codec.generate(b"{}", SPEC)) for _ in range(5)]
        for _ in range(2):
            assert await asyncio.to_thread(began.acquire, timeout=DEADLINE_S)
        jobs[3].cancel()
        for process in made:
            process.gate.set()
        results = await asyncio.gather(*jobs, return_exceptions=True)
        return [type(result).__name__ for result in results]

    names = run(read, make)

    assert len(made) == 2
    assert names == ["InferRequest"] * 3 + ["CancelledError", "InferRequest"]


def test_long_job_whose_client_left_ends(monkeypatch):
    monkeypatch.setattr(pool, "_LONG_JOB_BYTES", 1)
    process = HeldProcess()

    async def read(codec):
        job = asyncio.create_task(codec.generate(b'{"a":1}', SPEC))
        assert await asyncio.to_thread(process.began.wait, 60)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run(read, lambda: process)

    assert process.was_killed


def test_no_process_is_started_for_a_client_that_left(monkeypatch):
    monkeypatch.setattr(pool, "_LONG_JOB_BYTES", 10)
    made, ended = [], threading.Event()

    def make():
        made.append(HeldProcess())
        made[-1].gate.set()
        return made[-1]

    def begin(codec, *work):
        try:
            return whole_begin(codec, *work)
        finally:
            ended.set()

    async def read(codec):
        await codec.generate(b'{"a":1}', SPEC)
        (idle,) = made
        idle.gate.clear()
        idle.began.clear()
        ended.clear()
        job = asyncio.create_task(codec.generate(b'{"a":[1,2,3]}', SPEC))
        assert await asyncio.to_thread(idle.began.wait, 60)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        assert await asyncio.to_thread(ended.wait, 60)

    whole_begin = pool.CodecPool._begin
    monkeypatch.setattr(pool.CodecPool, "_begin", begin)
    run(read, make)

    assert len(made) == 1


def test_closed_pool_ends_what_runs():
    process = HeldProcess()

    async def read(codec):
        job = asyncio.create_task(codec.generate(b'{"a":1}', SPEC))
        assert await asyncio.to_thread(process.began.wait, 60)
        codec.close()
        with pytest.raises(UnavailableError):
            await job

    run(read, lambda: process)

    assert process.was_killed


def test_process_of_a_long_job_is_not_used_again(monkeypatch):
    monkeypatch.setattr(pool, "_LONG_JOB_BYTES", 10)
    made = []

    def make():
        made.append(InlineProcess())
        return made[-1]

    async def read(codec):
        await codec.generate(b'{"a":1}', SPEC)
        await codec.generate(b'{"a":[1,2,3]}', SPEC)
        await codec.generate(b'{"a":1}', SPEC)

    run(read, make)

    assert len(made) == 2


def large_text():
    entry = {"name": "a", "datatype": "FP32", "shape": [1000], "data": list(range(1000))}
    return json.dumps({"inputs": [entry]}).encode()


@pytest.mark.parametrize("make_process", [InlineProcess, pool.CodecProcess])
def test_large_tensors_go_to_the_memory_that_is_given(monkeypatch, make_process):
    monkeypatch.setattr(pool, "_LARGE_PAYLOAD_BYTES", 1000)
    memory = memoryview(bytearray(5000))
    asked = []

    def allocate(size, header_bytes):
        asked.append(size)
        return memory if len(asked) == 1 else None

    async def read(codec):
        text = large_text()
        return [await codec.infer(text, len(text), SPEC, LIMIT, allocate) for _ in range(2)]

    (first, _), (second, _) = run(read, make_process)

    assert asked == [4000, 4000]
    assert first.inputs["a"].data.obj is memory.obj
    assert bytes(first.inputs["a"].data) == bytes(second.inputs["a"].data)


def test_processes_that_wait_for_memory_count(monkeypatch):
    """A process keeps the text and its tensors until they are taken."""
    monkeypatch.setattr(pool, "_LARGE_PAYLOAD_BYTES", 100)
    text = large_text()
    made = []
    most = 0

    def make_process():
        made.append(InlineProcess())
        return made[-1]

    async def read(codec):
        def allocate(size, header_bytes):
            nonlocal most
            most = max(most, len(codec._busy))
            return memoryview(bytearray(size))

        reads = (codec.infer(text, len(text), SPEC, LIMIT, allocate) for _ in range(20))
        return await asyncio.gather(*reads)

    assert len(run(read, make_process)) == 20
    assert most <= WORKERS
    assert len(made) <= WORKERS


def test_process_of_a_client_that_left_before_its_tensors_were_taken_ends(monkeypatch):
    monkeypatch.setattr(pool, "_LARGE_PAYLOAD_BYTES", 1000)
    closed = []

    class Noted(InlineProcess):
        def close(self):
            closed.append(self)

    async def read(codec):
        def leave(size, header_bytes):
            asyncio.current_task().cancel()

        text = large_text()
        job = asyncio.create_task(codec.infer(text, len(text), SPEC, LIMIT, leave))
        await asyncio.gather(job, return_exceptions=True)
        assert job.cancelled()

    run(read, Noted)

    assert len(closed) == 1


def test_idle_process_ends(monkeypatch):
    monkeypatch.setattr(pool, "IDLE_S", 0.0)

    class Noted(InlineProcess):
        closed = asyncio.Event()

        def close(self):
            self.closed.set()

    async def read(codec):
        await codec.generate(b'{"a":1}', SPEC)
        await asyncio.wait_for(Noted.closed.wait(), 60)

    run(read, Noted)

    assert Noted.closed.is_set()


def test_memory_error_is_told_as_one(monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(child, "parse_large_generate", fail)

    with pytest.raises(UnavailableError, match="reading 2 bytes of JSON takes more than the"):
        run(lambda codec: codec.generate(b"{}", SPEC))


def job_of(members, spec):
    text = json.dumps(members).encode()
    job = Job(JobKind.GENERATE, len(text), 0, len(text), ParsedModel.of(spec))
    return child.run_job(decode_job(encode(job)), text)[0]


def test_large_generate_request_keeps_its_sequence():
    sequence = msgspec.structs.replace(SPEC, sequence=SequenceSpec())
    members = {"a": [1, 2], "b": "x", "sequence_id": 7, "sequence_start": True}

    reply = job_of(members, sequence)
    assert (reply.fields.correlation_id, reply.fields.flags, reply.fields.parameters) == (7, 1, {})
    assert job_of(members, SPEC).fields.parameters["sequence_id"] == 7


def test_large_generate_request_with_an_unknown_member_is_refused_for_functions():
    function = msgspec.structs.replace(SPEC, takes_parameters=False)

    reply = job_of({"a": [1, 2], "b": "x", "bb": 1}, function)
    assert reply.message == "model 'm' has no input 'bb', did you mean 'b'? Its inputs are: a, b"
