# SPDX-License-Identifier: Apache-2.0
"""Traces as they stand in files. The expected texts are those that the real Triton wrote."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.messages import ExecutionTimes
from pytriton.serving.server.tracing.request_trace import TensorFact, TracedExecution
from pytriton.serving.server.tracing.trace_files import tensor_text, trace_text
from tests.server.tracing.trace_facts import facts


def objects(*requests):
    return json.loads(f"[{trace_text(requests)}]")


def names(*requests):
    return [each["timestamps"][0]["name"] for each in objects(*requests) if "timestamps" in each]


def test_request_is_written_as_triton_does():
    sent = [("INFER_RESPONSE_COMPLETE", 161), ("HTTP_SEND_START", 162), ("HTTP_SEND_END", 163)]
    times = [
        ("HTTP_RECV_START", 80),
        ("HTTP_RECV_END", 90),
        ("REQUEST_START", 100),
        ("QUEUE_START", 110),
        ("COMPUTE_START", 120),
        ("COMPUTE_INPUT_END", 130),
        ("COMPUTE_OUTPUT_START", 140),
        ("COMPUTE_END", 150),
        ("REQUEST_END", 160),
        *sent,
    ]
    parts = [f'{{"id":1,"timestamps":[{{"name":"{name}","ns":{ns}}}]}}' for name, ns in times]
    parts.insert(2, '{"id":1,"model_name":"m","model_version":3,"request_id":"r1"}')

    assert trace_text([facts(request_id="r1", events=sent)]) == ",".join(parts)


def test_request_over_grpc_waits_for_its_message():
    assert names(facts(protocol="GRPC"))[:2] == ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]


def test_unknown_beginning_is_the_time_when_all_was_there():
    assert objects(facts(began_ns=0))[0]["timestamps"][0]["ns"] == 90


def test_request_without_an_execution_was_queued_when_it_began():
    made = objects(facts(executions=[]))

    assert names(facts(executions=[]))[2:] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert made[4]["timestamps"] == [{"name": "QUEUE_START", "ns": 100}]


def test_ensemble_has_no_times_of_computing():
    assert "COMPUTE_START" not in names(facts(is_ensemble=True))


def test_calls_come_before_the_request_that_made_them():
    call = {"is_call": True, "protocol": "", "parent_number": 1}
    made = objects(facts(1), facts(2, **call), facts(3, **call))

    assert list(dict.fromkeys(each["id"] for each in made)) == [3, 2, 1]
    assert made[0] == {"id": 3, "model_name": "m", "model_version": 3, "parent_id": 1}
    assert not any("RECV" in name for name in names(facts(2, **call)))


def test_names_are_written_as_json():
    name = 'a "name"\n'

    assert objects(facts(model_name=name))[2]["model_name"] == name


def test_tensors_stand_after_the_queue():
    data = np.float32([1, 2]).tobytes()
    tensors = [
        TensorFact("TENSOR_QUEUE_INPUT", "X", dtypes.FP32, (1, 2), data),
        TensorFact("TENSOR_BACKEND_OUTPUT", "Y", dtypes.FP32, (2,), data),
    ]
    text = trace_text([facts(tensors=tensors)])

    assert (
        '{"name":"QUEUE_START","ns":110}]},'
        '{"id":1,"activity":"TENSOR_QUEUE_INPUT",'
        '"tensor":{"name":"X","data":"1,2","shape":"1,2","dtype":"FP32"}},'
        '{"id":1,"activity":"TENSOR_BACKEND_OUTPUT",'
        '"tensor":{"name":"Y","data":"1,2","shape":"2","dtype":"FP32"}},'
    ) in text


def test_level_of_tensors_alone_has_only_these():
    tensor = TensorFact("TENSOR_QUEUE_INPUT", "X", dtypes.INT8, (1,), b"\x05")

    assert objects(facts(tensors=[tensor], has_timestamps=False)) == [
        {
            "id": 1,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "X", "data": "5", "shape": "1", "dtype": "INT8"},
        }
    ]


@pytest.mark.parametrize(
    "dtype, values, text",
    [
        ("BOOL", np.array([True, False]), "1,0"),
        ("UINT8", np.uint8([0, 255]), "0,255"),
        ("UINT16", np.uint16([0, 65535]), "0,65535"),
        ("UINT32", np.uint32([0, 2**32 - 1]), "0,4294967295"),
        ("UINT64", np.uint64([0, 2**64 - 1]), "0,18446744073709551615"),
        ("INT8", np.int8([-128, 127]), "-128,127"),
        ("INT16", np.int16([-32768, 32767]), "-32768,32767"),
        ("INT32", np.int32([-(2**31), 2**31 - 1]), "-2147483648,2147483647"),
        ("INT64", np.int64([-(2**63), 2**63 - 1]), "-9223372036854775808,9223372036854775807"),
        ("FP16", np.float16([1.5, 0.1, 65504, -2]), "1.5,0.0999756,65504,-2"),
        (
            "FP32",
            np.float32([0.1, 1e20, -1e-10, 3, 123456789, 1.0000001]),
            "0.1,1e+20,-1e-10,3,1.23457e+08,1",
        ),
        ("FP32", np.float32([np.nan, np.inf, -np.inf, -0.0]), "nan,inf,-inf,-0"),
        (
            "FP64",
            np.float64([1e300, 1e16, 1e15, 1e21, 1234567, 0.1 + 0.2]),
            "1e+300,1e+16,1e+15,1e+21,1.23457e+06,0.3",
        ),
        ("BF16", np.array([1.5, -2], ml_dtypes.bfloat16), "1.5,-2"),
        ("FP32", np.float32([]), ""),
    ],
)
def test_elements_are_written_as_triton_does(dtype, values, text):
    assert tensor_text(getattr(dtypes, dtype), values.tobytes()) == text


def test_strings_are_quoted_as_json():
    elements = [b"abc", b"", b"a,b", 'a"b\\c\né'.encode(), b"\xff"]
    text = tensor_text(dtypes.BYTES, dtypes.encode_bytes(elements))

    assert text.startswith('"abc","","a,b",')
    assert json.loads(f"[{text}]") == ["abc", "", "a,b", 'a"b\\c\né', "\\xff"]


def test_large_tensor_is_written_whole():
    values = np.arange(10_000, dtype=np.int32)

    assert tensor_text(dtypes.INT32, values.tobytes()) == ",".join(map(str, range(10_000)))


def test_cost_of_a_request_is_written_beside_its_model():
    executions = [
        TracedExecution(1, ExecutionTimes(110, 120, 130, 140, 150, 70, 5, 8, 16)),
        TracedExecution(1, ExecutionTimes(150, 155, 156, 157, 158, 30, 6, 8, 4)),
    ]
    (model,) = [each for each in objects(facts(1, executions=executions)) if "model_name" in each]

    assert model["cost"] == {
        "worker_ns": 100,
        "server_ns": 11,
        "queue_ns": 15,
        "bytes_in": 16,
        "bytes_out": 20,
    }
