# SPDX-License-Identifier: Apache-2.0
"""The source of a model under test: its class, its folder and its configuration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.pb_utils.model_config import ModelConfig
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

_CONFIG_NAME = "config.pbtxt"
_MODEL_FILE = "model.py"  # unless the configuration names another one


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
