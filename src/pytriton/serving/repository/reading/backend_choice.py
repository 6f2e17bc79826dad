# SPDX-License-Identifier: Apache-2.0
"""Decides which backend a model has and which file runs it, in Triton's order and words.

It is pure: what lies in the folders is given as data or asked with a function. `config_files` and
`source` read the folders.
"""

from __future__ import annotations

import enum
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.package import PACKAGE_FOLDER
from pytriton.serving.engine.config_rules import ENSEMBLE
from pytriton.serving.repository.reading.layout import is_inside

PYTHON = "python"
PYTORCH = "pytorch"
TENSORFLOW = "tensorflow"
# The file of a backend that is written in Python, and the `runtime` that chooses it.
MODEL_FILE = "model.py"
_PYTHON_LIBRARY = "libtriton_python.so"  # a `runtime` that means the Python backend itself
ENVIRONMENT = "EXECUTION_ENV_PATH"  # the parameter with the Python of a model


class CodeKind(enum.Enum):
    """Whose code runs a model."""

    MODEL = "model"  # the model's own `model.py`, as for the Python backend
    PYTHON = "python"  # the `model.py` of a backend, which all its models share
    LIBRARY = "library"  # a compiled backend


class BackendCode(msgspec.Struct, frozen=True, kw_only=True):
    """The file that runs a model."""

    kind: CodeKind
    backend: str
    path: Path
    is_ours: bool = False  # it is part of this package

    @property
    def folder(self) -> Path:
        """The folder of the file; for a backend it has the rest of its files."""
        return self.path.parent


class BackendFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that have a folder for each backend, in the order in which they are searched."""

    triton: Path = Path("/opt/tritonserver/backends")  # `--backend-directory`
    user: Path | None = None
    own: Path = PACKAGE_FOLDER / "runtime" / "framework_backends"


def user_backend_folder(environment: Mapping[str, str]) -> Path | None:
    """Returns the folder of a user's own backends, given environment variables; None: no home."""
    data, home = environment.get("XDG_DATA_HOME"), environment.get("HOME")
    if not data:
        if not home:
            return None
        data = f"{home}/.local/share"
    return Path(data, "pytriton", "backends")


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of model files, which tells the backend of a model that names none."""

    backend: str
    platform: str = ""
    filename: str
    is_directory: bool | None = None  # None: a file or a directory


# In the order of Triton's guesses.
_FORMATS = (
    _Format(
        backend=TENSORFLOW,
        platform="tensorflow_savedmodel",
        filename="model.savedmodel",
        is_directory=True,
    ),
    _Format(
        backend=TENSORFLOW,
        platform="tensorflow_graphdef",
        filename="model.graphdef",
        is_directory=False,
    ),
    _Format(
        backend="tensorrt", platform="tensorrt_plan", filename="model.plan", is_directory=False
    ),
    _Format(backend="onnxruntime", platform="onnxruntime_onnx", filename="model.onnx"),
    _Format(backend="openvino", filename="model.xml"),
    _Format(backend=PYTORCH, platform="pytorch_libtorch", filename="model.pt", is_directory=False),
    _Format(backend=PYTORCH, platform="torch_aoti", filename="model.pt2", is_directory=False),
    _Format(backend=PYTHON, filename=MODEL_FILE),
)


def fill_backend(config: Any, entries: Mapping[str, bool]) -> None:
    """Fill in the backend, the platform and the name of the model's file, as far as they follow.

    `entries` is what the first subdirectory of the model contains: whether it is a directory, by
    name. The message is changed.
    """
    if not (config.backend or config.platform or config.default_model_filename):
        found = next((each for each in _FORMATS if _is_there(each, entries)), None)
        if found is None:
            _fill_from_name(config)
            return
        config.platform = found.platform
        config.backend = found.backend
    elif not (config.backend or config.platform):
        named = (each for each in _FORMATS if each.filename == config.default_model_filename)
        config.backend = next((each.backend for each in named), "")
    elif not config.backend:
        named = (each for each in _FORMATS if each.platform == config.platform)
        config.backend = next((each.backend for each in named), "")
    _fill_format(config, entries)


def _fill_format(config: Any, entries: Mapping[str, bool]) -> None:
    """Fill in the platform and the file name that go with a backend."""
    formats = [each for each in _FORMATS if each.backend == config.backend]
    if not config.platform and config.backend == TENSORFLOW:  # it has no default
        name = config.default_model_filename
        formats = [
            each
            for each in formats
            if (each.filename == name if name else _is_there(each, entries))
        ]
    elif config.platform:
        formats = [each for each in formats if each.platform == config.platform]
    if not formats:
        return
    config.platform = config.platform or formats[0].platform
    # The code of such a model tries this file first; it is not TorchScript.
    is_python_form = config.backend == PYTORCH and config.runtime == MODEL_FILE
    if not config.default_model_filename and not is_python_form:
        config.default_model_filename = formats[0].filename


def _is_there(each: _Format, entries: Mapping[str, bool]) -> bool:
    is_directory = entries.get(each.filename)
    return is_directory is not None and each.is_directory in (None, is_directory)


def _fill_from_name(config: Any) -> None:
    """Take the backend from a name such as `model.mine`."""
    _, dot, backend = config.name.partition(".")
    if not dot:
        raise InvalidArgumentError(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no "
            "backend in model configuration. Expected model name of the form "
            "'model.<backend_name>'."
        )
    config.backend = backend
    config.default_model_filename = f"model.{backend}"


def choose_code(
    config: Any,
    model: Path,
    version: Path,
    folders: BackendFolders,
    exists: Callable[[Path], bool] = os.path.exists,
) -> BackendCode:
    """Returns the file that runs a version of a model.

    `exists` is False for a file that this user may not look at.
    """
    backend, runtime = config.backend, config.runtime
    if backend == PYTHON and runtime in ("", _PYTHON_LIBRARY):
        path = version / (config.default_model_filename or MODEL_FILE)
        return BackendCode(kind=CodeKind.MODEL, backend=backend, path=path)
    _check_backend_name(config)
    search = _Search(config, (version, model), folders)
    if runtime == MODEL_FILE:
        candidates = search.python_files()
    elif runtime:
        search.check_runtime()
        candidates = search.libraries(runtime)
    else:
        candidates = search.all()
    for code in candidates:
        if exists(code.path):
            return code
    raise search.failure()


class _Search:
    """The places where the code of one model may be."""

    def __init__(self, config: Any, own: tuple[Path, ...], folders: BackendFolders) -> None:
        self._config = config
        self._backend: str = config.backend
        self._own = own  # the directories of the version and of the model
        self._homes = [folders.triton / self._backend]
        if folders.user is not None:
            self._homes.append(folders.user / self._backend)
        self._ours = folders.own / self._backend

    def all(self) -> Iterator[BackendCode]:
        library = f"libtriton_{self._backend}.so"
        for directory in self._own:
            yield self._library(directory / library)
        for home in self._homes:
            yield self._library(home / library)
            yield self._python(home / MODEL_FILE)
        yield self._python(self._ours / MODEL_FILE, is_ours=True)

    def python_files(self) -> Iterator[BackendCode]:
        for home in self._homes:
            yield self._python(home / MODEL_FILE)
        yield self._python(self._ours / MODEL_FILE, is_ours=True)

    def libraries(self, name: str) -> Iterator[BackendCode]:
        for directory in (*self._own, *self._homes):
            yield self._library(directory / name)

    def check_runtime(self) -> None:
        runtime = self._config.runtime
        if not is_inside(runtime):
            raise InvalidArgumentError(
                f"backend library name '{runtime}' escapes backend directory '{self._homes[0]}', "
                "check model config runtime field"
            )

    def failure(self) -> InvalidArgumentError:
        runtime, model = self._config.runtime, self._config.name
        if not runtime:
            return InvalidArgumentError(
                f"unable to find backend library for backend '{self._backend}', try specifying "
                "runtime on the model configuration."
            )
        if runtime == MODEL_FILE:
            places = " ".join(f"'{home / MODEL_FILE}'" for home in self._homes)
            return InvalidArgumentError(
                f"unable to find Python backend based backend library '{runtime}' for model "
                f"'{model}', searched: {places}"
            )
        places = "".join(f"'{directory}' " for directory in (*self._own, *self._homes))
        return InvalidArgumentError(
            f"unable to find backend library '{runtime}' for model '{model}', searched: {places}"
        )

    def _library(self, path: Path) -> BackendCode:
        return BackendCode(kind=CodeKind.LIBRARY, backend=self._backend, path=path)

    def _python(self, path: Path, *, is_ours: bool = False) -> BackendCode:
        return BackendCode(kind=CodeKind.PYTHON, backend=self._backend, path=path, is_ours=is_ours)


def _check_backend_name(config: Any) -> None:
    if "/" in config.backend or "\0" in config.backend or config.backend in ("", ".", ".."):
        raise InvalidArgumentError(
            f"invalid backend name '{config.backend}' of model '{config.name}', backend name must "
            "not be empty or contain path traversal characters"
        )


def with_code(
    config: Any, code: BackendCode, exists: Callable[[Path], bool] = os.path.exists
) -> Any:
    """Returns the configuration with what Triton adds when it knows the file that runs the model.

    Models of backends in Python get the name of the file as `runtime`, and as their environment an
    archive that lies beside it, unless they name another one. Those of ours stay as they are.
    """
    if code.kind is not CodeKind.PYTHON or code.is_ours:
        return config
    completed = type(config)()
    completed.CopyFrom(config)
    completed.runtime = code.path.name
    archive = code.folder / f"pb_exec_env_{code.path.name}.tar.gz"
    if ENVIRONMENT not in config.parameters and exists(archive):
        completed.parameters[ENVIRONMENT].string_value = str(archive)
    return completed


Executor = Literal["local", "ray"]
PARAMETER = "EXECUTOR"  # of a model, in place of the server's setting
LOCAL, RAY = "local", "ray"


def runs_on_ray(config: Any, default: Executor) -> bool:
    """Returns whether a model's instances run on Ray; an ensemble has none."""
    if config.platform == ENSEMBLE:
        return False
    if PARAMETER not in config.parameters:
        return default == RAY
    value = config.parameters[PARAMETER].string_value
    if value not in (LOCAL, RAY):
        raise InvalidArgumentError(
            f"expected '{LOCAL}' or '{RAY}' as parameter {PARAMETER} of model '{config.name}', "
            f"got '{value}'"
        )
    return bool(value == RAY)


# Backends of ours: the package and one of its files that only its form for GPUs has. Those without
# a package do not use GPUs at all.
_GPU_FILES: dict[str, tuple[str, str] | None] = {
    "fil": None,
    "onnxruntime": ("onnxruntime", "capi/libonnxruntime_providers_cuda.so"),
    "openvino": None,
    PYTORCH: ("torch", "lib/libtorch_cuda.so"),
    "sklearn": None,
}


def package_folder(package: str) -> Path | None:
    """Returns the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def may_use_gpus(code: BackendCode, find: Callable[[str], Path | None] = package_folder) -> bool:
    """Returns whether models that do not say where they run belong on GPUs, if there are any."""
    if not code.is_ours or code.backend not in _GPU_FILES:
        return True
    needed = _GPU_FILES[code.backend]
    if needed is None:
        return False
    package, file = needed
    folder = find(package)
    return folder is not None and (folder / file).exists()
