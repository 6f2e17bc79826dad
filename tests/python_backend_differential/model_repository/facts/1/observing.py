# SPDX-License-Identifier: Apache-2.0
"""What a call returned or raised, as plain JSON."""

import enum
import math

import numpy as np
import triton_python_backend_utils as pb_utils


def observe(function):
    """The outcome of a call. Texts of TypeErrors are not compared: they show C++ signatures."""
    try:
        value = function()
    except TypeError:
        return {"raises": "TypeError"}
    except Exception as error:  # noqa: BLE001  that is what is compared
        return {"raises": type(error).__name__, "text": str(error)}
    return plain(value)


def plain(value):  # noqa: PLR0911  one for each kind
    """A value as JSON can hold it, with its type where that matters."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, enum.Enum) or value is None or isinstance(value, (bool, int, float, str)):
        return value.name if isinstance(value, enum.Enum) else value
    if isinstance(value, bytes):
        return f"bytes {value!r}"
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, type):
        return f"class {value.__name__}"
    return plain_object(value)


def plain_object(value):  # noqa: PLR0911  the same
    """What is told of arrays, tensors, responses and errors; of others the name of their class."""
    if isinstance(value, np.ndarray):
        return {
            "dtype": value.dtype.name,
            "shape": list(value.shape),
            "data": plain(value.tolist()),
        }
    if isinstance(value, np.generic):
        return {"dtype": value.dtype.name, "value": plain(value.item())}
    if isinstance(value, pb_utils.Tensor):
        return {"name": value.name(), "array": plain(value.as_numpy())}
    if isinstance(value, pb_utils.TritonError):
        return {"code": code_name(value), "message": value.message()}
    if isinstance(value, pb_utils.InferenceResponse):
        if value.has_error():
            return {"error": plain(value.error())}
        return {"tensors": plain(list(value.output_tensors()))}
    return f"a {type(value).__name__}"


def code_name(error):
    """The name of an error's code, found by comparing as models do."""
    names = (
        "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
    )
    return next(
        name for name in names.split() if getattr(pb_utils.TritonError, name) == error.code()
    )
