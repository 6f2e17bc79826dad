# SPDX-License-Identifier: Apache-2.0
"""The configuration that the arguments of `bind` describe, and checks of these arguments.

A callable is refused only if it certainly cannot accept the model's inputs: other decorators, and
callables that are not plain Python, may change the arguments and are accepted.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.documentation import Documentation
from pytriton.base.openai_routes import as_openai
from pytriton.decorators.batching import call_with_batch, call_with_sample
from pytriton.decorators.context import call_with_context, decorated_layers
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.common import DeviceKind
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.sequence_batcher import initial_states
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.triton_model_config import (
    ResponseCache,
    TensorSpec,
    TritonModelConfig,
)

if TYPE_CHECKING:
    import socket

    from pytriton.base.log_capture import LineSource
    from pytriton.decorators.context import TritonContext
    from pytriton.runtime.transport.control import RayInstances

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_DECORATORS = "pytriton.decorators"
_CONTEXT_ARGUMENT = "triton_context"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def bound_config(
    name: str,
    version: int,
    instance_count: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    config: ModelConfig,
) -> TritonModelConfig:
    """Make the configuration of a bound model, whose name and tensors were checked."""
    optional = [spec.name for spec in outputs if spec.optional]
    if optional:
        raise PyTritonValidationError(
            f"Output tensors cannot be optional. Outputs marked as optional: {optional}."
        )
    return TritonModelConfig(
        model_name=name,
        model_version=version,
        max_batch_size=config.max_batch_size,
        batching=config.batching,
        batcher=config.batcher,
        instance_group={DeviceKind.KIND_CPU: instance_count},
        decoupled=config.decoupled,
        inputs=_named(inputs, "INPUT"),
        outputs=_named(outputs, "OUTPUT"),
        response_cache=ResponseCache(enable=True) if config.response_cache else None,
        model_warmup=config.model_warmup,
        sequence=config.sequence,
        rate_limiter=config.rate_limiter,
        openai=as_openai(config.openai),
    )


def call_tensors(config: TritonModelConfig) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Returns what callables get and return: also the controls and states of sequences."""
    inputs, outputs = list(config.inputs or ()), list(config.outputs or ())
    if config.sequence is None:
        return inputs, outputs
    inputs += [
        TensorSpec(control.name, (1,), control.dtype) for control in config.sequence.controls
    ]
    for state in config.sequence.states:
        inputs.append(TensorSpec(state.input_name, tuple(state.shape), state.dtype))
        if all(state.output_name != spec.name for spec in outputs):
            outputs.append(TensorSpec(state.output_name, tuple(state.shape), state.dtype))
    names = [spec.name for spec in inputs]
    for name in names:
        if names.count(name) > 1:
            raise PyTritonValidationError(
                f"Expected inputs, controls and states with different names, got {name!r} twice"
            )
    return inputs, outputs


def _named(tensors: Sequence[Tensor], prefix: str) -> list[TensorSpec]:
    return [
        TensorSpec(
            name=tensor.name or f"{prefix}_{number}",
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            optional=tensor.optional,
        )
        for number, tensor in enumerate(tensors, 1)
    ]


def check_name_and_tensors(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Refuse an invalid name of a model, and invalid lists of tensors."""
    _check_name(name)
    _check_tensors("inputs", inputs)
    _check_tensors("outputs", outputs)


def _check_tensors(argument: str, tensors: Any) -> None:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise PyTritonValidationError(
            f"{argument}: expected a list of Tensor, got {type(tensors).__name__}"
        )
    for tensor in tensors:
        if not all(hasattr(tensor, field) for field in ("name", "shape", "dtype", "optional")):
            raise PyTritonValidationError(
                f"{argument}: expected a list of Tensor, got a list with {tensor!r}"
            )


def _check_name(model_name: str) -> None:
    if not model_name:
        raise PyTritonValidationError("Model name cannot be empty")
    if not _NAME.fullmatch(model_name):
        raise PyTritonValidationError(
            "Model name can only contain alphanumeric characters, dots, underscores and dashes, "
            f"got {model_name!r}"
        )


def signature_problem(
    infer_func: Callable[..., Any], inputs: Sequence[str], required: Sequence[str]
) -> str | None:
    """Returns why every call of a callable would fail; None if one may succeed.

    `required` are those of the inputs that every request has.
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


_LIST_MISTAKES = (AttributeError, PyTritonValidationError, TypeError)


def batch_hint(infer_func: Any, inputs: Collection[str], error: BaseException) -> str:
    """Returns a hint for the log if a callable failed as one does that lacks the decorator @batch.

    It got a list of requests for its only argument, which has the name of an input; or it took the
    list for an array.
    """
    if not isinstance(error, _LIST_MISTAKES) or next(iter(decorated_layers(infer_func)), None):
        return ""
    signature = _plain_signature(infer_func)
    if signature is None or len(signature.parameters) != 1:
        return ""
    (name,) = signature.parameters
    if name in inputs or ("list" in str(error) and not name.startswith("req")):
        return (
            f" - did you forget the decorator @batch? Without it, '{name}' is a list of requests, "
            "with it an array"
        )
    return ""


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


class AnyModel:
    """A bound model: `BoundModel`, whose instances are in this process, or `RayModel`.

    What is said here of instances and callables holds for a model without any in this process.

    Attributes:
        examples: Values for inputs that it certainly takes.
        takes_parameters: Whether its function gets the parameters of requests.
        line_source: Takes what its callables print and log, if its server keeps that.
        documentation: What its author says of it.
        nullable: Inputs that are None if a request has null for them.
        start_timeout_s: How long its instances may take to start, beyond the usual.
    """

    start_timeout_s: float = 0.0

    def __init__(self, name: str, version: int, config: TritonModelConfig) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.examples: Mapping[str, Any] = {}
        self.takes_parameters: bool = True
        self.line_source: LineSource | None = None
        self.documentation = Documentation()
        self.nullable: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """The unique key of the model in one server."""
        return self.name.lower(), self.version

    @property
    def ray(self) -> RayInstances | None:
        """The settings by which the server starts its instances; None: they are in this process."""
        return None

    def message(self) -> dict[str, Any]:
        """Returns the ModelConfig message for the server, without warm-ups, which instances run."""
        config = dataclasses.replace(self.config, model_warmup=None)
        return ModelConfigGenerator(config).get_config()

    def initial_states(self) -> dict[str, bytes]:
        """Returns the initial states of its sequences, by input, in the protocol's layout."""
        return initial_states(self.config.sequence)

    def prepare(self, context: TritonContext) -> None:
        """Prepare callables of this process."""

    def leave(self, context: TritonContext) -> None:
        """Forget callables of this process."""

    def open_instances(
        self, on_unrecoverable: Callable[[], None]
    ) -> tuple[list[socket.socket], list[int]]:
        """Start the instances of this process.

        Returns:
            The server's ends of their channels, and the number of concurrent batches of each.
        """
        return [], []

    def is_alive(self) -> bool:
        """Whether every instance of this process accepts batches."""
        return True

    def close(self, timeout_s: float) -> None:
        """Wait for instances of this process."""
