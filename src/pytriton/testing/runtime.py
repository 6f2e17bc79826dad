# SPDX-License-Identifier: Apache-2.0
"""The runtime of a model in a harness: logs, metrics, and functions in place of other models."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytriton.base.errors import ServerError
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import failure_text
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics
from pytriton.testing.records import LogLine

Outputs: TypeAlias = Mapping[str, NDArray[Any]]
# Takes the inputs and returns outputs, an error or, for a decoupled model, an iterator over those.
Target: TypeAlias = Callable[
    [dict[str, NDArray[Any]]], Outputs | TritonError | Iterator[Outputs | TritonError]
]

_NEEDS_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using the"
    " decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or"
    " 'async_exec' calls for decoupled models.'"
)


class HarnessRuntime:
    """The runtime of a model in a test, which records the model's calls."""

    def __init__(
        self,
        instance_name: str,
        model_directory: str,
        models: Mapping[str, Target],
        backend_config: Mapping[str, str],
    ) -> None:
        self.instance_name = instance_name
        self.model_directory = model_directory
        self.backend_config = backend_config
        self.can_infer = False  # True between `initialize` and `finalize`
        self.logs: list[LogLine] = []
        self.calls: list[InferenceRequest] = []
        self._models = dict(models)
        self._ready = set(models)
        self._metrics = CustomMetrics()
        own = WorkerMetrics(self._metrics)
        self._actions: dict[str, Callable[..., Any]] = {
            "load_model": self._load_model,
            "unload_model": self._unload_model,
            "is_model_ready": self._is_model_ready,
            "new_family": own.new_family,
            "delete_family": own.delete_family,
            "new_metric": own.new_metric,
            "delete_metric": own.delete_metric,
            "increment": own.increment,
            "set": own.set,
            "observe": own.observe,
            "value": own.value,
        }

    def infer(
        self, request: InferenceRequest, *, decoupled: bool, is_awaited: bool = False
    ) -> TargetCall:
        """See `Runtime.infer`."""
        if not self.can_infer:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        self.calls.append(request)
        name = request.model_name
        target = self._models[name] if name in self._ready else None
        return TargetCall(request, target, decoupled=decoupled)

    def call(self, action: str, **arguments: Any) -> Any:
        """See `Runtime.call`."""
        try:
            return self._actions[action](**arguments)
        except ServerError as error:
            raise TritonModelException(error.message) from error

    def notify(self, action: str, **arguments: Any) -> None:
        """See `Runtime.notify`."""
        self.call(action, **arguments)

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        self.logs.append(LogLine(level, message, file, line))

    def metrics(self) -> dict[str, float]:
        """Returns all values, by name and labels as on the metrics page."""
        return {
            f"{family.name}{suffix}{_label_text(labels)}": value
            for family in self._metrics.families()
            for suffix, labels, value in family.readings()
        }

    def _load_model(self, name: str, config: str, files: dict[str, bytes]) -> None:
        if name not in self._models:
            raise TritonModelException(
                f"failed to load '{name}', the harness was given no function of this name, only"
                f" {sorted(self._models)}"
            )
        self._ready.add(name)

    def _unload_model(self, name: str, unload_dependents: bool) -> None:
        self._ready.discard(name)

    def _is_model_ready(self, name: str, version: str) -> bool:
        return name in self._ready


def _label_text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


class TargetCall:
    """A call of a `Target`; implements `pytriton.runtime.pb_utils.runtime.InferenceCall`."""

    def __init__(
        self, request: InferenceRequest, target: Target | None, *, decoupled: bool
    ) -> None:
        self.is_over: bool = False
        self._name = request.model_name
        self._output_names = request.output_names
        self._responses = self._run(request, target, decoupled=decoupled)

    def receive(self) -> InferenceResponse | None:
        """Returns the next response; None after the last one."""
        response = next(self._responses, None)
        self.is_over = response is None
        return response

    def notify(self, wake: Callable[[], None]) -> None:
        """Do nothing: the function runs in `receive`, so no response arrives later."""
        wake()

    def cancel(self) -> None:
        """Close the generator; only the empty final response is left to receive."""
        self._responses.close()
        self._responses = (InferenceResponse() for _ in range(1))

    def abandon(self) -> None:
        """Close the generator."""
        self._responses.close()

    def _run(
        self, request: InferenceRequest, target: Target | None, *, decoupled: bool
    ) -> Generator[InferenceResponse, None, None]:
        if target is None:
            return self._refused(f"Request for unknown model: '{self._name}' is not found")
        try:
            result = target({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except Exception as error:  # noqa: BLE001  it becomes an error response, as in a server
            return self._failed(error)
        if not isinstance(result, Iterator):
            return (self._response(each) for each in (result,))
        if not decoupled:
            return self._refused(_NEEDS_DECOUPLED.format(self._name))
        return self._stream(result)

    def _stream(
        self, results: Iterator[Outputs | TritonError]
    ) -> Generator[InferenceResponse, None, None]:
        try:
            for result in results:
                yield self._response(result)
        except Exception as error:  # noqa: BLE001  as in `_run`
            yield from self._failed(error)
        else:
            yield InferenceResponse()  # decoupled models usually end with an empty response

    def _response(self, result: Outputs | TritonError) -> InferenceResponse:
        if isinstance(result, TritonError):
            return InferenceResponse(error=result)
        names = self._output_names or result
        return InferenceResponse(
            [Tensor(name, np.asarray(array)) for name, array in result.items() if name in names]
        )

    def _failed(self, error: Exception) -> Generator[InferenceResponse, None, None]:
        text = failure_text(f"{self._name}_0", error)
        yield InferenceResponse(error=TritonError(text))

    def _refused(self, reason: str) -> Generator[InferenceResponse, None, None]:
        text = f"Model {self._name} - Error when running inference: {reason}"
        yield InferenceResponse(error=TritonError(text))
