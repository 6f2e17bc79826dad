# SPDX-License-Identifier: Apache-2.0
"""Responses, errors and the members that a model only names."""

import c_python_backend_utils as native
import numpy as np
import triton_python_backend_utils as pb_utils

CODES = [
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
]
CONSTANTS = (
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
)


def tensor():
    return pb_utils.Tensor("t", np.zeros(1, np.int8))


def responses(_request):
    failure, one = pb_utils.TritonError("broken"), tensor()
    return {
        "nothing": pb_utils.InferenceResponse,
        "no tensors": lambda: pb_utils.InferenceResponse([]).output_tensors(),
        "tensors": lambda: pb_utils.InferenceResponse(output_tensors=[tensor()]),
        "tensors in a tuple": lambda: pb_utils.InferenceResponse((tensor(),)),
        "same tensor object": lambda: pb_utils.InferenceResponse([one]).output_tensors()[0] is one,
        "None": lambda: pb_utils.InferenceResponse(None),
        "None among tensors": lambda: pb_utils.InferenceResponse([tensor(), None]),
        "array among tensors": lambda: pb_utils.InferenceResponse([np.zeros(1)]),
        "tensor not in a list": lambda: pb_utils.InferenceResponse(tensor()),
        "two of one name": lambda: pb_utils.InferenceResponse([tensor(), tensor()]),
        "error": lambda: pb_utils.InferenceResponse(error=failure),
        "error and tensors": lambda: pb_utils.InferenceResponse([tensor()], failure),
        "error by position": lambda: pb_utils.InferenceResponse([], failure).has_error(),
        "error is the same": lambda: pb_utils.InferenceResponse(error=failure).error() is failure,
        "error None": lambda: pb_utils.InferenceResponse([], None).error(),
        "error text": lambda: pb_utils.InferenceResponse([], "broken"),
        "error exception": lambda: pb_utils.InferenceResponse([], ValueError("broken")),
        "has no error": lambda: pb_utils.InferenceResponse([tensor()]).has_error(),
        "unknown argument": lambda: pb_utils.InferenceResponse(outputs=[]),
    }


def response_parameters(_request):
    def made(value):
        return pb_utils.InferenceResponse([], None, value).parameters()

    return {
        "none": lambda: pb_utils.InferenceResponse([]).parameters(),
        "None": lambda: made(None),
        "nothing": lambda: made({}),
        "several": lambda: made({"a": 1, "b": "x", "c": True}),
        "by keyword": lambda: pb_utils.InferenceResponse([], parameters={"a": 1}).parameters(),
        "float": lambda: made({"a": 1.5}),
        "list": lambda: made([1]),
        "number for a key": lambda: made({1: 1}),
    }


def errors(_request):
    return {
        "only a message": lambda: pb_utils.TritonError("a"),
        **{
            f"code {code}": lambda code=code: pb_utils.TritonError(
                "a", getattr(pb_utils.TritonError, code)
            )
            for code in CODES
        },
        **{
            f"name of {code}": lambda code=code: getattr(pb_utils.TritonError, code).name
            for code in CODES
        },
        **{
            f"number of {code}": lambda code=code: int(getattr(pb_utils.TritonError, code))
            for code in CODES
        },
        "by keywords": lambda: pb_utils.TritonError(
            message="a", code=pb_utils.TritonError.NOT_FOUND
        ),
        "no message": pb_utils.TritonError,
        "empty message": lambda: pb_utils.TritonError(""),
        "message None": lambda: pb_utils.TritonError(None),
        "message of bytes": lambda: pb_utils.TritonError(b"a").message(),
        "message a number": lambda: pb_utils.TritonError(1),
        "code a number": lambda: pb_utils.TritonError("a", 3),
        "code a text": lambda: pb_utils.TritonError("a", "INTERNAL"),
        "code None": lambda: pb_utils.TritonError("a", None),
        "cannot be raised": lambda: issubclass(pb_utils.TritonError, BaseException),
        "codes differ": lambda: pb_utils.TritonError.INTERNAL == pb_utils.TritonError.UNKNOWN,
        "code is a member": lambda: (
            pb_utils.TritonError("a").code() == pb_utils.TritonError.INTERNAL
        ),
        "exception": lambda: issubclass(pb_utils.TritonModelException, Exception),
        "exception text": lambda: str(pb_utils.TritonModelException("a")),
    }


def members(_request):
    return {
        **{name: lambda name=name: getattr(pb_utils, name) for name in CONSTANTS},
        "memory kinds": lambda: [
            pb_utils.TRITONSERVER_MEMORY_GPU.name,
            pb_utils.TRITONSERVER_MEMORY_CPU.name,
        ],
        "memory numbers": lambda: [
            int(pb_utils.TRITONSERVER_MEMORY_GPU),
            int(pb_utils.TRITONSERVER_MEMORY_CPU),
        ],
        "native classes": lambda: [
            getattr(native, name) is getattr(pb_utils, name)
            for name in (
                [
                    "Tensor",
                    "InferenceRequest",
                    "pb_utils.InferenceResponse",
                    "pb_utils.TritonError",
                    "TritonModelException",
                    "Logger",
                    "MetricFamily",
                    "PreferredMemory",
                    "load_model",
                    "unload_model",
                    "is_model_ready",
                ]
            )
        ],
        "native only": lambda: [
            type(getattr(native, name)).__name__
            in {"type", "pybind11_type", "EnumType", "EnumMeta"}
            for name in (
                [
                    "InferenceTrace",
                    "InferenceResponseSender",
                    "ResponseIterator",
                    "Metric",
                    "MetricKind",
                    "MemoryType",
                ]
            )
        ],
        "free shared memory": lambda: native.shared_memory.free_memory() > 0,
        "preferred memory": lambda: pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1),
        "preferred memory alone": lambda: pb_utils.PreferredMemory(
            pb_utils.TRITONSERVER_MEMORY_CPU
        ),
        "preferred memory by keywords": lambda: pb_utils.PreferredMemory(
            preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_CPU, preferred_device_id=0
        ),
        "preferred memory a number": lambda: pb_utils.PreferredMemory(1),
        "preferred memory None": lambda: pb_utils.PreferredMemory(None),
        "preferred memory device text": lambda: pb_utils.PreferredMemory(
            pb_utils.TRITONSERVER_MEMORY_CPU, "0"
        ),
        "sender cannot be made": native.InferenceResponseSender,
    }


def logger(_request):
    log = pb_utils.Logger
    return {
        "log": lambda: log.log("fact: plain"),
        "log at a level": lambda: log.log("fact: at a level", log.WARNING),
        "log by keywords": lambda: log.log(message="fact: by keywords", level=log.ERROR),
        "info": lambda: log.log_info("fact: info"),
        "warning": lambda: log.log_warn("fact: warning"),
        "error": lambda: log.log_error("fact: error"),
        "verbose": lambda: log.log_verbose("fact: verbose"),
        "several lines": lambda: log.log_info("fact: first\nfact: second"),
        "unicode": lambda: log.log_info("fact: é"),
        "empty": lambda: log.log_info(""),
        "message of bytes": lambda: log.log_info(b"fact: bytes"),
        "message a number": lambda: log.log_info(1),
        "message None": lambda: log.log(None),
        "level a number": lambda: log.log("a", 1),
        "level None": lambda: log.log("a", None),
        "no message": log.log_info,
        "levels": lambda: [level.name for level in (log.INFO, log.WARNING, log.ERROR, log.VERBOSE)],
        "level class": lambda: log.LogLevel.INFO == log.INFO,
    }


GROUPS = {
    "responses": responses,
    "response parameters": response_parameters,
    "errors": errors,
    "members": members,
    "logger": logger,
}
