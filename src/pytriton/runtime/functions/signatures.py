# SPDX-License-Identifier: Apache-2.0
"""Checks when a callable is bound whether it can accept the model's inputs as arguments.

A callable is refused only if it certainly cannot: other decorators, and callables that are not
plain Python, may change the arguments and are accepted.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.decorators.batching import call_with_batch, call_with_sample
from pytriton.decorators.context import call_with_context
from pytriton.decorators.wrapping import decorated_layers

_DECORATORS = "pytriton.decorators"
_CONTEXT_ARGUMENT = "triton_context"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def signature_problem(
    infer_func: Callable[..., Any], inputs: Sequence[str], required: Sequence[str]
) -> str | None:
    """Returns why every call of a callable would fail; None if one may succeed.

    Args:
        infer_func: callable to be bound.
        inputs: names of the model's inputs.
        required: names of the inputs that every request has.
    """
    function: Any = infer_func
    calls = []
    for call, wrapped, _ in decorated_layers(infer_func):
        if not call.__module__.startswith(_DECORATORS):
            return None
        calls.append(call)
        function = wrapped
    signature = _plain_signature(function)
    if signature is None:
        return None
    if call_with_batch not in calls and call_with_sample not in calls:
        return _request_list_problem(signature)
    context = [_CONTEXT_ARGUMENT] if call_with_context in calls else []
    return _input_names_problem(signature, [*inputs, *context], [*required, *context])


def _plain_signature(function: Any) -> inspect.Signature | None:
    """Returns the signature of a function or method that is not wrapped."""
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = getattr(function, "__call__", None)  # noqa: B004  a bound method, not a test
    if type(function) not in (types.FunctionType, types.MethodType):
        return None
    if hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return None
    return inspect.signature(function)


def _request_list_problem(signature: inspect.Signature) -> str | None:
    try:
        signature.bind([])
    except TypeError:
        return (
            f"expected a callable that takes a list of requests, got one with the arguments "
            f"{signature}; under the decorator @batch it takes an array for each input"
        )
    return None


def _input_names_problem(
    signature: inspect.Signature, given: list[str], required: list[str]
) -> str | None:
    parameters = signature.parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind in _BY_NAME}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    unknown = [] if takes_any else [name for name in required if name not in named]
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and (parameter.name not in given or parameter.kind is parameter.POSITIONAL_ONLY)
    ]
    if not unknown and not missing:
        return None
    problems = []
    if unknown:
        problems.append(f"it does not take {', '.join(unknown)}")
    if missing:
        problems.append(f"nothing is given for {', '.join(missing)}")
    return (
        f"expected a callable that takes {', '.join(given) or 'nothing'} by name, got one with the "
        f"arguments {signature}: {' and '.join(problems)}"
    )
