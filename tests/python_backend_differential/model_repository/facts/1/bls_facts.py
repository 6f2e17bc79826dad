# SPDX-License-Identifier: Apache-2.0
"""Calls to other models: what comes back, in which pieces, and from where calls may be made."""

import json
import multiprocessing
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

from .observing import observe, plain


def number(value, name="IN"):
    return pb_utils.Tensor(name, np.array([value], np.int32))


def text(value, name="SCRIPT"):
    return pb_utils.Tensor(name, np.array([value], dtype=object))


def request_to(model, *inputs, outputs=(), **options):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=list(inputs), requested_output_names=list(outputs), **options
    )


def seen_by_mirror(*inputs, **options):
    """What the called model saw of a request."""
    response = request_to("mirror", *inputs, outputs=["SEEN"], **options).exec()
    if response.has_error():
        return response
    return json.loads(response.output_tensors()[0].as_numpy()[0])


def calls(request):
    given = pb_utils.get_input_tensor_by_name(request, "NUMBERS")
    numbers = pb_utils.Tensor("INT32", given.as_numpy())
    again = request_to("mirror", numbers, outputs=["OUT_INT32"])
    return {
        "response": again.exec,
        "the same request again": again.exec,
        "response has parameters": lambda: (
            request_to("square", number(1)).exec(decoupled=True) is not None
        ),
        "no outputs named": lambda: sorted(
            tensor.name() for tensor in request_to("mirror", numbers).exec().output_tensors()
        ),
        "order of outputs": lambda: [
            tensor.name()
            for tensor in request_to("mirror", numbers, outputs=["SEEN", "OUT_INT32"])
            .exec()
            .output_tensors()
        ],
        "unknown output": lambda: request_to("mirror", numbers, outputs=["NOWHERE"]).exec(),
        "tensor of the own request": lambda: request_to("renamed", given, outputs=["OUT"]).exec(),
        "what is passed on": lambda: seen_by_mirror(
            numbers,
            request_id="abc",
            correlation_id=7,
            flags=0,
            timeout=5000000,
            parameters={"a": 1, "b": "x", "c": True},
        ),
        "correlation id of text": lambda: seen_by_mirror(numbers, correlation_id="seven"),
        "nothing is passed on": seen_by_mirror,
        "sequence flags": lambda: seen_by_mirror(correlation_id=9, flags=3),
        "empty float tensor": lambda: request_to(
            "mirror", pb_utils.Tensor("FP32", np.zeros((0,), np.float32)), outputs=["OUT_FP32"]
        ).exec(),
        "empty bytes tensor": lambda: request_to(
            "mirror", pb_utils.Tensor("BYTES", np.array([], dtype=object)), outputs=["OUT_BYTES"]
        ).exec(),
        "bytes": lambda: request_to(
            "mirror",
            pb_utils.Tensor("BYTES", np.array([b"a", b""], dtype=object)),
            outputs=["OUT_BYTES"],
        ).exec(),
        "version": lambda: (
            request_to("square", number(0), model_version=1).exec(decoupled=True).__class__.__name__
        ),
        "preferred memory": lambda: request_to(
            "mirror",
            numbers,
            outputs=["OUT_INT32"],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
        ).exec(),
        "model name of bytes": lambda: request_to(b"mirror", numbers, outputs=["OUT_INT32"]).exec(),
    }


def failures(_request):
    codes = (
        "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
    )
    return {
        "unknown model": lambda: request_to("nowhere").exec(),
        "unknown model by iterator": lambda: list(request_to("nowhere").exec(decoupled=True)),
        "model that is not loaded": lambda: request_to("never_loaded").exec(),
        "unknown version": lambda: request_to("mirror", model_version=9).exec(),
        "bad version": lambda: request_to("mirror", model_version=0).exec(),
        "missing input": lambda: request_to("renamed").exec(),
        "unknown input": lambda: request_to("mirror", number(1, "WRONG")).exec(),
        "wrong dtype": lambda: request_to(
            "renamed", pb_utils.Tensor("NUMBERS", np.zeros(1, np.int8))
        ).exec(),
        "wrong shape": lambda: request_to(
            "renamed", pb_utils.Tensor("NUMBERS", np.zeros((1, 1), np.int32))
        ).exec(),
        "decoupled model": lambda: request_to("square", number(1)).exec(),
        "exception in the model": lambda: request_to("returns", text("raise")).exec(),
        "error has no tensors": lambda: request_to("nowhere").exec().output_tensors(),
        **{
            f"error {code}": lambda code=code: request_to("returns", text(f"error {code}")).exec()
            for code in codes.split()
        },
        "exec with a number": lambda: request_to("mirror").exec(decoupled=1),
        "exec with an unknown argument": lambda: request_to("mirror").exec(timeout=1),
        "async_exec without a loop": lambda: request_to("mirror").async_exec(),
    }


def iterators(_request):
    def of(value):
        return request_to("square", number(value)).exec(decoupled=True)

    def count(iterator):
        return sum(1 for _ in iterator)

    def partly():
        iterator = of(4)
        next(iterator)
        return [count(iterator), count(iterator), count(iterator)]

    def with_break():
        iterator = of(4)
        count(iterator)
        seen = []
        for item in iterator:
            seen.append(plain(item))
            if len(seen) == 2:
                break
        return [seen, plain(next(iterator)), count(iterator), count(iterator)]

    def at_the_end():
        iterator = of(1)
        count(iterator)
        return [observe(lambda: next(iterator)), observe(lambda: next(iterator))]

    return {
        "responses": lambda: list(of(2)),
        "no responses": lambda: list(of(0)),
        "final with the last": lambda: list(of(-3)),
        "coupled model": lambda: list(
            request_to("renamed", number(3, "NUMBERS")).exec(decoupled=True)
        ),
        "partly read, then again": partly,
        "broken off": with_break,
        "next at the end": at_the_end,
        "len": lambda: len(of(1)),
        "index": lambda: of(1)[0],
        "iter is itself": lambda: [iterator := of(1), iter(iterator) is iterator][1],
        "two at once": lambda: [first := of(2), second := of(1), list(second), list(first)][2:],
        "dropped": lambda: [next(of(3)), "dropped"][1],
        "error after a response": lambda: list(of(99)),
        "class": lambda: type(of(1)).__name__,
        "parameters": lambda: request_to("square", number(1)).exec(True) is not None,
        "cancel": lambda: of(1).cancel(),
    }


def in_child(value):
    response = request_to("renamed", number(value, "NUMBERS")).exec()
    return plain(response)


def places(_request):
    def from_thread():
        seen = []
        threads = [
            threading.Thread(target=lambda value=value: seen.append((value, in_child(value))))
            for value in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(seen)

    def from_children():
        with multiprocessing.Pool(2) as pool:
            return pool.map(in_child, range(3))

    return {
        "threads": from_thread,
        "children": from_children,
        "after the children": lambda: in_child(5),
    }


GROUPS = {
    "bls calls": calls,
    "bls failures": failures,
    "bls iterators": iterators,
    "bls places": places,
}
