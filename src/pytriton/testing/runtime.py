# SPDX-License-Identifier: Apache-2.0
"""What a model in a harness is and has around it.

Its class, folder and configuration; its logs and metrics, and functions in place of other models.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from pytriton.base.errors import ServerError
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.model_config import ModelConfig
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import failure_text
from pytriton.runtime.python_backend.loader import load_class
from pytriton.serving.engine.config import (
    config_from_dict,
    config_from_text,
    config_to_json,
    normalise_config,
    validate_config,
)
from pytriton.serving.repository.reading.backend_choice import fill_backend
from pytriton.serving.repository.reading.config_files import FUNCTION, completed_config
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

_CONFIG_NAME = "config.pbtxt"
_MODEL_FILE = "model.py"  # unless the configuration names another one


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


@dataclass
class ModelUnderTest:
    """A model's class and its folders, as in a repository."""

    model_class: type[Any]
    version_directory: Path
    model_directory: Path
    version: str = "1"
    is_backend: bool = False  # the file is the code of a backend, outside of the model's folder
    _code_directory: Path = Path()
    _modules_before: frozenset[str] = frozenset()
    _path_before: list[str] = field(default_factory=list)

    @classmethod
    def find(
        cls, model: str | Path | type[Any], model_directory: str | Path | None = None
    ) -> ModelUnderTest:
        """Import a model's file as a server does, or use its class.

        Args:
            model: the model's folder, its file, the file of its backend, or its class.
            model_directory: the model's folder, if it is not the one of the file.

        Raises:
            RuleError: there is no such file, or it is not a Python file.
            AttributeError: the file has no class `TritonPythonModel`.
        """
        if isinstance(model, type):
            source = cls(model, _folder_of(model), _folder_of(model))
        else:
            path = Path(model).resolve()
            source = cls._imported(_file_in(path) if path.is_dir() else path)
        if model_directory is not None:
            source.model_directory = Path(model_directory).resolve()
            source.version = _last_version(source.model_directory)
            source.version_directory = source.model_directory / source.version
            source.is_backend = True
        return source

    @classmethod
    def _imported(cls, path: Path) -> ModelUnderTest:
        directory = path.parent
        modules, places = frozenset(sys.modules), list(sys.path)
        is_version = directory.name.isdecimal()
        try:
            model_class = load_class(str(path), directory.name if is_version else "")
        except BaseException:
            sys.path[:] = places
            raise
        if is_version:
            version, model_directory = directory.name, directory.parent
        else:
            version, model_directory = "1", directory
        return cls(
            model_class,
            directory,
            model_directory,
            version,
            _code_directory=model_directory,
            _modules_before=modules,
            _path_before=places,
        )

    def undo_import(self) -> None:
        """Undo the import, so that the next model imports its own files."""
        if not self._path_before:
            return
        sys.path[:] = self._path_before
        for name in set(sys.modules) - self._modules_before:
            file = getattr(sys.modules[name], "__file__", None)
            if name == self.version or (
                file is not None and Path(file).is_relative_to(self._code_directory)
            ):
                del sys.modules[name]

    def read_config(self, config: Mapping[str, Any] | str | Path | None) -> Any:
        """Returns the configuration with which a server would run the model; None if none exists.

        Raises:
            InvalidArgumentError: it is not valid.
            RuleError: the result of `auto_complete_config` is not a configuration.
        """
        file = self.model_directory / _CONFIG_NAME if config is None else config
        if isinstance(file, Mapping):
            message = config_from_dict(file)
        elif config is not None or Path(file).exists():
            message = config_from_text(Path(file).read_text(encoding="utf-8"), str(file))
        else:
            message = config_from_dict({})
        message.name = message.name or self.model_directory.name
        if message.backend:
            fill_backend(message, {})
        message.backend = message.backend or "python"
        completed = self._complete(normalise_config(message))
        if len(completed.input) or len(completed.output):
            validate_config(completed)
        return completed

    def _complete(self, config: Any) -> Any:
        complete = getattr(self.model_class, FUNCTION, None)
        if complete is None:
            return config
        answer = complete(ModelConfig(config_to_json(config).decode()))
        if not isinstance(answer, ModelConfig):
            raise RuleError(
                f"{FUNCTION} function in model '{config.name}' must return a valid pb.ModelConfig"
                f" object, got {type(answer)}"
            )
        return completed_config(config, orjson.dumps(answer.as_dict()).decode())


def _folder_of(model_class: type[Any]) -> Path:
    try:
        return Path(inspect.getfile(model_class)).resolve().parent
    except (OSError, TypeError):  # it was defined in a prompt or a notebook
        return Path.cwd()


def _file_in(directory: Path) -> Path:
    """Returns the code of the highest version in a model's folder, or of a version's folder."""
    is_version = directory.name.isdecimal()
    model_directory = directory.parent if is_version else directory
    config = model_directory / _CONFIG_NAME
    name = ""
    if config.exists():
        message = config_from_text(config.read_text(encoding="utf-8"), str(config))
        name = message.default_model_filename
    version = directory if is_version else directory / _last_version(directory)
    path = version / (name or _MODEL_FILE)
    if not path.is_file():
        raise RuleError(
            f"expected a model's folder with its code in {path}, or the path of a Python file, got "
            f"the folder {directory}"
        )
    return path


def _last_version(directory: Path) -> str:
    """Returns the highest version in a model's folder; "1" if there is none."""
    numbers = [each.name for each in directory.glob("[0-9]*") if each.name.isdecimal()]
    return max(numbers, key=int, default="1")
