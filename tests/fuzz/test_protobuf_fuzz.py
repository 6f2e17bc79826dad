# SPDX-License-Identifier: Apache-2.0
"""Random protobuf: our own readers say what protobuf says, and every method answers.

Messages are valid ones with fields that are missing, repeated, of another type, in groups, too
long, or written in more bytes than they need.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pytriton.base.errors import ServerError
from pytriton.base.protos import service_pb2
from pytriton.protocol import kserve_pb, repository_pb
from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import frame
from pytriton.protocol.kserve_pb import parse_message, read_large
from pytriton.protocol.protobuf_fields import FieldError
from pytriton.protocol.repository_pb import read_load_request
from pytriton.protocol.tensor_contents import tensor_from_contents
from tests.fuzz.fuzzing import (
    Case,
    assert_reveals_nothing,
    assert_work_is_paid,
    fuzz,
    without_logged_errors,
)
from tests.fuzz.grpc_rig import FIXED_WORK, GrpcRig, infer_request, plain_block
from tests.fuzz.mutation import NUMBERS, field, mutate_message, split_fields, varint
from tests.server.grpc_fakes import framed
from tests.wire.http2.frame_client import window_update

CONTENTS = {
    "BOOL": ("bool_contents", (True, False)),
    "INT8": ("int_contents", (-1, 1, 127)),
    "INT32": ("int_contents", (-(2**31), 5)),
    "INT64": ("int64_contents", (-(2**63), 2**63 - 1)),
    "UINT16": ("uint_contents", (0, 2**16 - 1)),
    "UINT64": ("uint64_contents", (2**64 - 1, 1)),
    "FP32": ("fp32_contents", (0.5, -1.0)),
    "FP64": ("fp64_contents", (1e300,)),
    "BYTES": ("bytes_contents", (b"", b"text", b"t" * 200)),
}


def valid_request(source: random.Random) -> Any:
    """A message with anything that it may have."""
    request = service_pb2.ModelInferRequest(model_name=source.choice(("double", "stream", "")))
    if source.random() < 0.5:
        request.id, request.model_version = source.choice(("", "7", "\u00e9")), "1"
    for number in range(source.choice((0, 1, 1, 2))):
        tensor = request.inputs.add(name=source.choice(("x", "prompt", f"n{number}")))
        tensor.shape.extend(source.choices((0, 1, 2, -1, 2**62), k=source.choice((0, 1, 2, 3))))
        tensor.datatype, (name, values) = source.choice(list(CONTENTS.items()))
        if source.random() < 0.6:
            values = source.choices(values, k=source.choice((0, 1, 3)))
            getattr(tensor.contents, name).extend(values)
        else:
            request.raw_input_contents.append(source.randbytes(source.choice((0, 4, 8, 200))))
        if source.random() < 0.2:
            tensor.parameters["shared_memory_region"].string_param = "r"
    for _ in range(source.choice((0, 0, 1, 2))):
        output = request.outputs.add(name="y")
        output.parameters["classification"].int64_param = source.choice((0, 1, -1))
    for name in source.sample(
        ("priority", "sequence_id", "a", "timeout"), source.choice((0, 1, 3))
    ):
        choice, value = source.choice(
            (("int64_param", -1), ("uint64_param", 2**64 - 1), ("bool_param", True),
             ("string_param", "s"), ("double_param", 0.5))
        )  # fmt: skip
        setattr(request.parameters[name], choice, value)
    return request


def random_message(source: random.Random) -> bytes:
    message: bytes = valid_request(source).SerializeToString()
    for _ in range(source.choice((0, 1, 1, 2, 3))):
        message = mutate_message(source, message)
    if source.random() < 0.1:  # numbers of a field one by one, which a sender may also pack
        numbers = b"".join(field(2, 0, varint(int(each))) for each in source.choices(NUMBERS, k=5))
        content = field(1, 2, b"x") + field(2, 2, b"INT32") + field(5, 2, numbers)
        message += field(5, 2, content)
    return message


def described(parsed: Any, raw: Any) -> tuple[Any, ...]:
    """What a reader has understood, in values that can be compared."""
    return (
        parsed.model_name,
        parsed.model_version,
        parsed.id,
        dict(parsed.parameters or {}),
        [
            (each.name, each.dtype, tuple(each.shape), tensor(each), parameters(each))
            for each in parsed.inputs
        ],
        [(each.name, parameters(each)) for each in parsed.outputs],
        [bytes(each) for each in raw],
    )


def parameters(part: Any) -> dict[str, bytes]:
    return {name: value.SerializeToString() for name, value in (part.parameters or {}).items()}


def tensor(part: Any) -> object:
    if part.contents is None:
        return None
    try:
        return bytes(tensor_from_contents(part.contents, part.dtype, part.name, "m"))
    except ServerError as error:
        return error.message


def outcome(read: Any, message: Any) -> Any:
    try:
        return described(*read(message))
    except (ServerError, FieldError, DecodeError, UnicodeDecodeError) as error:
        assert_reveals_nothing(str(error), bytes(message))
        return None


def by_protobuf(message: bytes) -> Any:
    return kserve_pb._read_whole(service_pb2.ModelInferRequest.FromString(message))


def check_readers(messages: Case) -> None:
    for message in messages:
        known = outcome(by_protobuf, message)
        for _ in range(2):  # the second time with what the first has cached
            seen: list[Any] = []
            assert_work_is_paid(
                lambda s=seen, m=message: s.append(outcome(parse_message, m)),
                len(message),
                fixed_work=4000,
            )
            # Python's protobuf drops entries of a map that have unknown fields, others keep them.
            if known is not None and seen[0] is not None and seen[0][3] != known[3]:
                assert seen[0][3] == entries(message)
                known = (*known[:3], seen[0][3], *known[4:])
            assert seen == [known]
        large = outcome(read_large, memoryview(message))
        # Large messages with groups are refused. Values that protobuf refuses may be ignored.
        if large is None or "Unable to parse request" in str(large):
            assert known is None or has_groups(message), message
        elif known is not None:
            assert (*large[:3], *large[4:]) == (*known[:3], *known[4:]), message


def entries(message: bytes) -> dict[str, Any]:
    """The parameters of a message, each entry for itself."""
    contents = [
        content for number, kind, content in split_fields(message) if (number, kind) == (4, 2)
    ]
    return dict(map(kserve_pb.read_parameter, contents))


def has_groups(message: bytes) -> bool:
    """Whether some byte could be the tag of a group."""
    return any(byte & 7 in (3, 4) for byte in message)


METHODS = {
    "ModelInfer": service_pb2.ModelInferRequest,
    "ModelStreamInfer": service_pb2.ModelInferRequest,
    "ModelReady": service_pb2.ModelReadyRequest,
    "ModelMetadata": service_pb2.ModelMetadataRequest,
    "ModelConfig": service_pb2.ModelConfigRequest,
    "ModelStatistics": service_pb2.ModelStatisticsRequest,
    "RepositoryIndex": service_pb2.RepositoryIndexRequest,
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest,
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest,
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest,
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterRequest,
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest,
    "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest,
    "TraceSetting": service_pb2.TraceSettingRequest,
    "LogSettings": service_pb2.LogSettingsRequest,
    "/grpc.health.v1.Health/Check": None,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": None,
}
NAMES = ("double", "stream", "nobody", "", "m", "\u00e9", "a/../b")


def other_request(source: random.Random, method: str) -> bytes:
    """A message for a method, with its texts and maps filled."""
    kind = METHODS[method]
    if kind is None:
        return field(source.choice((1, 3, 4, 6, 7)), 2, source.choice((b"", b"double", b"\xff")))
    message = kind()
    names = {each.name for each in kind.DESCRIPTOR.fields}
    for name in names & {"name", "model_name", "version", "key", "repository_name"}:
        if source.random() < 0.7:
            setattr(message, name, source.choice(NAMES))
    if "parameters" in names:
        key = source.choice(("config", "file:1/model.py", "unload_dependents", "x"))
        parameter = message.parameters[key]
        choice = source.choice(("string_param", "bytes_param", "bool_param", "int64_param"))
        values = {"string_param": "{}", "bytes_param": b"x", "bool_param": True, "int64_param": 7}
        setattr(parameter, choice, values[choice])
    if method == "TraceSetting":
        name = source.choice(("trace_rate", "trace_level", "trace_count", "trace_file", "x"))
        message.settings[name].value.extend(source.choice(([], ["1"], ["OFF"], ["a", "b"], ["-5"])))
    if method == "LogSettings":
        name = source.choice(("log_info", "log_verbose_level", "log_format", "log_file", "x"))
        setting = message.settings[name]
        choice, value = source.choice(
            (("bool_param", True), ("uint32_param", 1), ("string_param", "ISO8601"))
        )
        setattr(setting, choice, value)
    if "byte_size" in names:
        message.byte_size = source.choice((0, 1, 2**63))
    content: bytes = message.SerializeToString()
    return content


def random_calls(source: random.Random) -> Case:
    calls = []
    for _ in range(source.choice((1, 3, 8))):
        method = source.choice(list(METHODS))
        if method.endswith("Infer"):
            message = source.choice((random_message(source), infer_request()))
        else:
            message = other_request(source, method)
        if source.random() < 0.5:
            message = mutate_message(source, message)
        calls.append((method, message))
    return calls


def check_calls(calls: Case) -> None:
    """Assert that each call ends with a status, on a connection that stays."""
    rig = GrpcRig(work_burst=10_000)
    rig.play([frames.PREFACE + frame(frames.SETTINGS, 0, 0, b"") + window_update(0, 2**30)])
    sent = b"".join(message for _, message in calls)
    with without_logged_errors():
        for number, (method, message) in enumerate(calls):
            stream_id = 2 * number + 1
            wire = frame(frames.HEADERS, frames.END_HEADERS, stream_id, plain_block(method))
            wire += frame(frames.DATA, frames.END_STREAM, stream_id, framed(message))
            assert_work_is_paid(lambda w=wire: rig.play([w]), len(wire), fixed_work=FIXED_WORK)
        rig.client.run()
        for number, (method, _) in enumerate(calls):
            response = rig.client.response(2 * number + 1)
            assert response.status, (method, response)
            assert_reveals_nothing(response.text, sent)
            assert "unexpected error" not in response.text or "parameter" in response.text, response
        assert not rig.is_over
        rig.client.sent.clear()
        rig.probe()
        rig.end()


def random_loads(source: random.Random) -> Case:
    message = other_request(source, "RepositoryModelLoad")
    for _ in range(source.choice((0, 1, 2, 3))):
        message = mutate_message(source, message)
    return [message]


def check_loads(messages: Case) -> None:
    for message in messages:
        known, seen = (
            load_outcome(read, message)
            for read in (read_load_request, repository_pb._Reader().read)
        )
        # Fields that are unknown, or that come twice, may be refused by one reader only.
        if isinstance(known, tuple) and isinstance(seen, tuple) and not has_dropped_entry(message):
            assert seen == known, message


def has_dropped_entry(message: bytes) -> bool:
    """Whether Python's protobuf drops a parameter because it has unknown fields; others do not."""
    unknown = UnknownFieldSet(service_pb2.RepositoryModelLoadRequest.FromString(message))
    return any(each.field_number == 3 for each in unknown)


def load_outcome(read: Any, message: bytes) -> Any:
    """What a reader has understood; the text of an error; None if it could not parse."""
    try:
        request = read(memoryview(message))
    except FieldError:
        return None
    except (ServerError, UnicodeDecodeError) as error:
        assert_reveals_nothing(str(error), message)
        return None if "parse" in str(error) or isinstance(error, UnicodeError) else str(error)
    overrides = request.overrides
    files = {name: bytes(content) for name, content in overrides.files.items()}
    return request.model_name, overrides.config, files


def test_random_messages_are_read_as_protobuf_reads_them():
    fuzz("protobuf readers", 500, lambda source: [random_message(source)], check_readers)


def test_random_load_requests_are_read_as_protobuf_reads_them():
    fuzz("load requests", 400, random_loads, check_loads)


def test_random_messages_are_answered_by_all_methods():
    fuzz("calls", 70, random_calls, check_calls)


@pytest.mark.parametrize("method", METHODS)
def test_valid_message_of_the_fuzzer_is_answered(method):
    source = random.Random(1)
    message = infer_request() if method.endswith("Infer") else other_request(source, method)

    check_calls([(method, message)])
