# SPDX-License-Identifier: Apache-2.0
"""Requests: what their constructor takes and refuses, and what a model reads of them."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

NEEDED = {"inputs": [], "requested_output_names": ["OUT"], "model_name": "m"}


def make(**changes):
    return pb_utils.InferenceRequest(**{**NEEDED, **changes})


def tensor():
    return pb_utils.Tensor("t", np.zeros(1, np.int8))


def needed(_request):
    without = {
        f"without {name}": lambda name=name: pb_utils.InferenceRequest(
            **{key: value for key, value in NEEDED.items() if key != name}
        )
        for name in NEEDED
    }
    return {
        **without,
        **{f"{name} None": lambda name=name: make(**{name: None}) for name in NEEDED},
        "inputs with None": lambda: make(inputs=[None]),
        "inputs with None and an id": lambda: make(inputs=[tensor(), None], request_id="7"),
        "inputs with an array": lambda: make(inputs=[np.zeros(1)]),
        "inputs in a tuple": lambda: len(make(inputs=(tensor(),)).inputs()),
        "inputs not a list": lambda: make(inputs=tensor()),
        "outputs with None": lambda: make(requested_output_names=[None]),
        "outputs with nothing": lambda: make(requested_output_names=["a", ""]),
        "outputs with nothing and an id": lambda: make(requested_output_names=[""], request_id="7"),
        "outputs with bytes": lambda: make(requested_output_names=[b"a"]).requested_output_names(),
        "outputs twice": lambda: make(
            requested_output_names=["a", "b", "a"]
        ).requested_output_names(),
        "outputs in a set": lambda: make(requested_output_names={"a"}).requested_output_names(),
        "outputs as text": lambda: make(requested_output_names="ab").requested_output_names(),
        "no outputs": lambda: make(requested_output_names=[]).requested_output_names(),
        "model name of bytes": lambda: make(model_name=b"m").request_id(),
        "empty model name": lambda: make(model_name="").request_id(),
        "no arguments": pb_utils.InferenceRequest,
        "unknown argument": lambda: make(colour="blue"),
        "by position": lambda: pb_utils.InferenceRequest(
            "id", 5, [tensor()], ["a"], "m", 1, 2, 3
        ).flags(),
    }


def optional(_request):
    names = (
        "request_id",
        "correlation_id",
        "model_version",
        "flags",
        "timeout",
        "preferred_memory",
    )
    return {
        **{f"{name} None": lambda name=name: make(**{name: None}).flags() for name in names},
        "request id": lambda: make(request_id="é").request_id(),
        "request id of bytes": lambda: make(request_id=b"ab").request_id(),
        "request id a number": lambda: make(request_id=5),
        "correlation id": lambda: make(correlation_id=2**64 - 1).correlation_id(),
        "correlation id too big": lambda: make(correlation_id=2**64).correlation_id(),
        "correlation id negative": lambda: make(correlation_id=-1).correlation_id(),
        "correlation id text": lambda: make(correlation_id="abc").correlation_id(),
        "correlation id empty text": lambda: make(correlation_id="").correlation_id(),
        "correlation id bytes": lambda: make(correlation_id=b"abc").correlation_id(),
        "correlation id float": lambda: make(correlation_id=1.5).correlation_id(),
        "correlation id bool": lambda: make(correlation_id=True).correlation_id(),
        "model version text": lambda: make(model_version="1"),
        "model version float": lambda: make(model_version=1.0),
        "flags": lambda: make(flags=3).flags(),
        "flags negative": lambda: make(flags=-1).flags(),
        "flags too big": lambda: make(flags=2**32).flags(),
        "flags text": lambda: make(flags="1"),
        "timeout": lambda: make(timeout=2**40).timeout(),
        "timeout negative": lambda: make(timeout=-1).timeout(),
        "timeout text": lambda: make(timeout="1"),
        "trace None": lambda: make(trace=None).flags(),
        "trace text": lambda: make(trace="abc"),
        "preferred memory": lambda: make(
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)
        ).flags(),
        "preferred memory a number": lambda: make(preferred_memory=1),
    }


def defaults(_request):
    request = make()
    return {
        "id": request.request_id,
        "correlation id": request.correlation_id,
        "flags": request.flags,
        "timeout": request.timeout,
        "parameters": request.parameters,
        "inputs": request.inputs,
        "trace": lambda: type(request.trace()).__name__,
        "trace context": lambda: request.trace().get_context(),
        "set flags": lambda: [request.set_flags(2), request.flags()],
        "set flags text": lambda: request.set_flags("2"),
        "set flags negative": lambda: request.set_flags(-1),
        "set flags None": lambda: request.set_flags(None),
        "sender of a made request": lambda: type(request.get_response_sender()).__name__,
        "cancellation of a made request": request.is_cancelled,
        "release flags of a made request": lambda: request.set_release_flags(1),
    }


def parameters(_request):
    values = {
        "text": {"a": "b"},
        "number": {"a": 5},
        "negative number": {"a": -5},
        "truth": {"a": True},
        "several": {"b": 1, "a": "x", "c": False},
        "unicode": {"é": "ü"},
        "quotes": {"a": 'b"c\\'},
        "nothing": {},
        "big number": {"a": 2**63},
        "float": {"a": 1.5},
        "None value": {"a": None},
        "list value": {"a": [1]},
        "bytes value": {"a": b"x"},
        "number for a key": {1: "a"},
        "bytes for a key": {b"a": "a"},
    }
    return {
        **{
            name: lambda value=value: json.loads(make(parameters=value).parameters())
            for name, value in values.items()
        },
        "None": lambda: make(parameters=None).parameters(),
        "a list": lambda: make(parameters=["a"]),
        "a text": lambda: make(parameters="a"),
        "pairs": lambda: make(parameters=[("a", 1)]),
    }


def received(request):
    numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
    return {
        "inputs": lambda: sorted(tensor.name() for tensor in request.inputs()),
        "inputs are a list": lambda: type(request.inputs()).__name__,
        "outputs": request.requested_output_names,
        "id": request.request_id,
        "correlation id": request.correlation_id,
        "flags": request.flags,
        "timeout": request.timeout,
        "parameters": request.parameters,
        "trace": lambda: type(request.trace()).__name__,
        "trace context": lambda: request.trace().get_context(),
        "is cancelled": request.is_cancelled,
        "sender": lambda: type(request.get_response_sender()).__name__,
        "sender is the same": lambda: (
            request.get_response_sender() is request.get_response_sender()
        ),
        "sender is not cancelled": lambda: request.get_response_sender().is_cancelled(),
        "sender cannot be closed": lambda: request.get_response_sender().close(),
        "release flags 0": lambda: request.set_release_flags(0),
        "release flags 4": lambda: request.set_release_flags(4),
        "release flags text": lambda: request.set_release_flags("1"),
        "release flags None": lambda: request.set_release_flags(None),
        "release all": lambda: request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL),
        "array": lambda: numbers,
        "array can be written": lambda: numbers.flags.writeable,
        "array is the same": lambda: (
            pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy() is numbers
        ),
    }


GROUPS = {
    "request needs": needed,
    "request options": optional,
    "request defaults": defaults,
    "request parameters": parameters,
    "request received": received,
}
