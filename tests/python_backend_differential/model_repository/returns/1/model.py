# SPDX-License-Identifier: Apache-2.0
"""Returns or raises what a request asks for: everything that execute may do wrong."""

import numpy as np
import triton_python_backend_utils as pb_utils


class OwnError(Exception):
    """An exception that only this model knows."""


class Wordless(Exception):  # noqa: N818 - its name is a part of the compared text
    """An exception whose text cannot be made."""

    def __str__(self):
        raise RuntimeError("no words")


def out(value=b"fine"):
    return pb_utils.Tensor("OUT", np.array([value], dtype=object))


def other(*values):
    return pb_utils.Tensor("OTHER", np.array(values or (1, 2), np.float32))


def fine(*tensors):
    return pb_utils.InferenceResponse(list(tensors) or [out()])


def deep(depth):
    if depth:
        return deep(depth - 1)
    raise ValueError("deep\ndown")


def chained():
    try:
        raising(KeyError("inner"))
    except KeyError as error:
        raise OwnError("outer") from error


def raising(error):
    raise error


SCRIPTS = {
    "fine": lambda: [fine()],
    "tuple": lambda: (fine(),),
    "generator": lambda: (item for item in [fine()]),
    "dict": lambda: {"OUT": out()},
    "response": fine,
    "text": lambda: "fine",
    "number": lambda: 5,
    "truth": lambda: True,
    "empty list": list,
    "two responses": lambda: [fine(), fine()],
    "entry of text": lambda: ["fine"],
    "entry of tensor": lambda: [out()],
    "entry of error": lambda: [pb_utils.TritonError("broken")],
    "entry of list": lambda: [[fine()]],
    "no tensors": lambda: [pb_utils.InferenceResponse([])],
    "both outputs": lambda: [fine(out(), other())],
    "other order": lambda: [fine(other(), out())],
    "unknown output": lambda: [fine(out(), pb_utils.Tensor("NOWHERE", np.zeros(1, np.int8)))],
    "only an unknown output": lambda: [fine(pb_utils.Tensor("NOWHERE", np.zeros(1, np.int8)))],
    "one output twice": lambda: [fine(out(b"first"), out(b"second"))],
    "other dtype": lambda: [fine(pb_utils.Tensor("OTHER", np.array([1, 2], np.float16)))],
    "other shape": lambda: [fine(pb_utils.Tensor("OTHER", np.ones((1, 3), np.float32)))],
    "empty output": lambda: [fine(pb_utils.Tensor("OTHER", np.ones((0,), np.float32)))],
    "empty bytes output": lambda: [fine(pb_utils.Tensor("OUT", np.array([], dtype=object)))],
    "scalar output": lambda: [fine(pb_utils.Tensor("OTHER", np.array(1, np.float32)))],
    "error and tensors": lambda: [
        pb_utils.InferenceResponse([out()], pb_utils.TritonError("broken"))
    ],
    "empty error": lambda: [pb_utils.InferenceResponse(error=pb_utils.TritonError(""))],
    "error with lines": lambda: [
        pb_utils.InferenceResponse(error=pb_utils.TritonError("one\ntwo é"))
    ],
    "raise": lambda: raising(ValueError("wrong")),
    "raise nothing to say": lambda: raising(ValueError()),
    "raise a key": lambda: raising(KeyError("a")),
    "raise with two arguments": lambda: raising(ValueError("a", 2)),
    "raise unicode": lambda: raising(ValueError("é")),
    "raise own": lambda: raising(OwnError("own")),
    "raise of the module": lambda: raising(pb_utils.TritonModelException("module")),
    "raise wordless": lambda: raising(Wordless()),
    "raise deep": lambda: deep(3),
    "raise chained": chained,
    "raise index": lambda: [][len(SCRIPTS)],
    "raise in a library": lambda: np.zeros(2).reshape(3),
    "raise exit": lambda: raising(SystemExit(3)),
    "raise interrupt": lambda: raising(KeyboardInterrupt()),
    "raise attribute": lambda: pb_utils.nothing,
    "raise stop": lambda: raising(StopIteration()),
}


class TritonPythonModel:
    """Follows a script."""

    def execute(self, requests):
        script = requests[0].inputs()[0].as_numpy()[0].decode()
        kind, _, code = script.partition(" ")
        if kind == "error" and hasattr(pb_utils.TritonError, code):
            return [
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError(f"code {code}", getattr(pb_utils.TritonError, code))
                )
            ]
        return SCRIPTS[script]()
