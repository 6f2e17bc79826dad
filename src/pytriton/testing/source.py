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

from pytriton.engine.config import (
    config_from_dict,
    config_from_text,
    config_to_json,
    normalise_config,
    validate_config,
)
from pytriton.pb_utils.model_config import ModelConfig
from pytriton.python_backend.failure_text import RuleError
from pytriton.python_backend.loader import load_class
from pytriton.repository.reading.auto_complete import FUNCTION, completed_config

_CONFIG_NAME = "config.pbtxt"


@dataclass
class ModelSource:
    """A model's class and its folders, as in a repository."""

    model_class: type[Any]
    version_directory: Path
    model_directory: Path
    version: str = "1"
    _modules_before: frozenset[str] = frozenset()
    _path_before: list[str] = field(default_factory=list)

    @classmethod
    def find(cls, model: str | Path | type[Any]) -> ModelSource:
        """Import a model's file as a server does, or use its class.

        Raises:
            RuleError: there is no such file, or it is not a Python file.
            AttributeError: the file has no class `TritonPythonModel`.
        """
        if isinstance(model, type):
            try:
                directory = Path(inspect.getfile(model)).resolve().parent
            except (OSError, TypeError):  # it was defined in a prompt or a notebook
                directory = Path.cwd()
            return cls(model, directory, directory)
        path = Path(model).resolve()
        directory = path.parent
        modules, places = frozenset(sys.modules), list(sys.path)
        is_version = directory.name.isdecimal()
        try:
            model_class = load_class(str(path), directory.name if is_version else "")
        except BaseException:
            sys.path[:] = places
            raise
        if is_version:
            return cls(model_class, directory, directory.parent, directory.name, modules, places)
        return cls(model_class, directory, directory, "1", modules, places)

    def undo_import(self) -> None:
        """Undo the import, so that the next model imports its own files."""
        if not self._path_before:
            return
        sys.path[:] = self._path_before
        for name in set(sys.modules) - self._modules_before:
            file = getattr(sys.modules[name], "__file__", None)
            if name == self.version or (
                file is not None and Path(file).is_relative_to(self.model_directory)
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
