# SPDX-License-Identifier: Apache-2.0
"""Reads a model's configuration from its file or a client, or infers it from the model's files.

What a model's own `auto_complete_config` returns is applied here.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, UnsupportedError
from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.config import config_from_dict, config_from_text, normalise_config
from pytriton.serving.engine.config_rules import ENSEMBLE, validate_model, validate_tensors
from pytriton.serving.engine.ensemble.ensemble_rules import validate_ensemble
from pytriton.serving.repository.reading.backend_choice import (
    ENVIRONMENT,
    BackendFolders,
    Executor,
    choose_code,
    fill_backend,
    may_use_gpus,
    runs_on_ray,
)
from pytriton.serving.repository.reading.instances import choose_kinds
from pytriton.serving.repository.reading.layout import (
    ChooseVersions,
    ModelPlace,
    contained_file,
    is_inside,
    select_versions,
    subdirectories,
)

CONFIG_FILE = "config.pbtxt"
CONFIG_DIRECTORY = "configs"
INITIAL_STATE_DIRECTORY = "initial_state"

_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
# A compiled library that decides what is batched: a parameter with its path, or a file.
_BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
_BATCH_STRATEGY_FILE = "batchstrategy.so"


def read_config(
    place: ModelPlace,
    name: str,
    *,
    override: str | None = None,
    config_name: str | None = None,
    may_complete: bool = True,
    gpu_ids: Sequence[int] = (),
    backend_folders: BackendFolders | None = None,
    executor: Executor = "local",
) -> Any:
    """Read a model's configuration and fill in every default that is known before it runs.

    `override` is JSON that replaces the file. `config_name` names a configuration in `configs`,
    used if the model has it. With `may_complete`, the model may fill in what is missing, such as
    tensors.
    """
    if override is not None:
        config = config_from_override(override)
    else:
        config = _config_from_file(place.directory, config_name, is_required=not may_complete)
    if config.name and config.name != name and not place.is_renamed:
        raise InvalidArgumentError(
            f"unexpected directory name '{name}' for model '{config.name}', "
            "directory name must equal model name"
        )
    config.name = name
    fill_backend(config, _first_entries(place.directory))
    if runs_on_ray(config, executor):
        choose_kinds(config)
        gpu_ids = ()  # those of this machine do not matter
    prefers_gpus = bool(gpu_ids) and _prefers_gpus(config, place, backend_folders)
    normal = normalise_config(config, gpu_ids, prefers_gpus=prefers_gpus)
    validate_model(normal)
    if normal.platform == ENSEMBLE:
        validate_ensemble(normal)
    elif not may_complete:
        validate_tensors(normal)
    return normal


def config_from_override(text: str) -> Any:
    """Parse a configuration that a client sent."""
    try:
        return config_from_dict(orjson.loads(text))
    except (orjson.JSONDecodeError, ServerError) as error:
        raise InvalidArgumentError(f"Invalid config override: {error}") from error


def read_ensemble(
    places: Sequence[ModelPlace], *, override: str | None = None, config_name: str | None = None
) -> Any | None:
    """Returns the configuration of an ensemble, as it is, to know its steps before it is loaded.

    It is None for every other model, and if the configuration cannot be read: loading the model
    reports that.
    """
    if override is None and len(places) != 1:
        return None
    try:
        if override is not None:
            config = config_from_override(override)
        else:
            (place,) = places
            path = _config_path(place.directory, config_name)
            # Most models are no ensembles; to look for the word costs less than to parse the file.
            if ENSEMBLE.encode() not in path.read_bytes():
                return None
            config = _config_from_file(place.directory, config_name, is_required=True)
    except (OSError, ServerError):
        return None
    return config if config.platform == ENSEMBLE else None


def version_chooser(
    override: str | None, config_name: str | None, *, is_signed: bool = False
) -> ChooseVersions:
    """Returns a function that chooses the versions to fetch, before the model is read.

    A model that has to be signed needs all of them: its signature is about the whole folder.
    """

    def choose(directory: Path, available: Collection[int]) -> Collection[int]:
        if is_signed:
            return available
        try:
            if override is not None:
                config = config_from_override(override)
            else:
                config = _config_from_file(directory, config_name, is_required=False)
        except ServerError:
            return ()  # reading the model reports it
        if config.model_repository_agents.agents:
            return available  # an agent may look at any file
        return select_versions(config.version_policy, available)

    return choose


def _config_path(directory: Path, config_name: str | None) -> Path:
    path = directory / CONFIG_FILE
    if config_name is not None:
        own = directory / CONFIG_DIRECTORY / f"{config_name}.pbtxt"
        path = own if own.is_file() else path
    return path


def _config_from_file(directory: Path, config_name: str | None, *, is_required: bool) -> Any:
    path = _config_path(directory, config_name)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        if not is_required:
            return model_config_pb2.ModelConfig()
        raise _unreadable(path, error) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"failed to read text proto from {path}: expected UTF-8, "
            f"got byte {error.object[error.start]:#04x} at offset {error.start}"
        ) from error
    return config_from_text(text, str(path))


def _unreadable(path: Path, error: OSError) -> InternalError:
    return InternalError(f"failed to open text file for read {path}: {error.strerror}")


def _prefers_gpus(config: Any, place: ModelPlace, folders: BackendFolders | None) -> bool:
    """Returns whether instances without a kind are on GPUs; so they are unless that cannot work."""
    if config.platform == ENSEMBLE or ENVIRONMENT in config.parameters:
        return True  # what another environment has is not known here
    try:
        # Versions may have libraries of their own, which then use GPUs anyway.
        directory = place.directory
        return may_use_gpus(choose_code(config, directory, directory, folders or BackendFolders()))
    except InvalidArgumentError:
        return True  # loading the model reports it


def _first_entries(directory: Path) -> dict[str, bool]:
    """Returns the entries of the first subdirectory: whether each is a directory, by name."""
    names = subdirectories(directory)
    if not names:
        return {}
    try:
        with os.scandir(directory / names[0]) as entries:
            return {entry.name: entry.is_dir() for entry in entries}
    except OSError as error:
        path = directory / names[0]
        raise InternalError(f"failed to open directory {path}: {error.strerror}") from error


def check_model_files(config: Any, directories: Iterable[Path]) -> None:
    """Refuse a model whose settings or files no worker can run."""
    named = {"default_model_filename": config.default_model_filename}
    named |= {f"cc_model_filenames[{key}]": name for key, name in config.cc_model_filenames.items()}
    for field, name in named.items():
        if name and not is_inside(name):
            raise InvalidArgumentError(
                f"expected '{field}' of model '{config.name}' to stay within its version "
                f"directory, got '{name}'"
            )
    if _FORCE_CPU in config.parameters:
        value = config.parameters[_FORCE_CPU].string_value
        if value not in ("yes", "no"):
            raise UnsupportedError(f"Incorrect value for {_FORCE_CPU}: {value}'")
    # Without its library, a model would get other batches than it was made for.
    if _BATCH_STRATEGY in config.parameters:
        raise UnsupportedError(
            f"model '{config.name}' asks for a batching library ({_BATCH_STRATEGY}), this server "
            "does not load compiled batching strategies; remove the parameter"
        )
    for directory in directories:
        path = directory / _BATCH_STRATEGY_FILE
        if path.exists():
            raise UnsupportedError(
                f"model '{config.name}' has a batching library '{path}', this server does not load "
                "compiled batching strategies; remove the file"
            )


def read_labels(place: ModelPlace, config: Any) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each output that has a label file, which has one per line."""
    labels = {}
    for output in config.output:
        if output.label_filename:
            path = contained_file(place, output.label_filename)
            try:
                text = path.read_text("utf-8", errors="replace")
            except OSError as error:
                raise _unreadable(path, error) from error
            labels[output.name] = tuple(text.splitlines())
    return labels


def read_initial_states(place: ModelPlace, config: Any) -> dict[str, bytes]:
    """Returns the contents of the files of initial states, by the input of the state."""
    contents = {}
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            if initial.WhichOneof("state_data") == "data_file":
                path = contained_file(place, initial.data_file, under=INITIAL_STATE_DIRECTORY)
                try:
                    contents[state.input_name] = path.read_bytes()
                except OSError as error:
                    raise _unreadable(path, error) from error
    return contents


FUNCTION = "auto_complete_config"
_CLASS = "TritonPythonModel"
_MAX_PARSED = 1 << 20  # characters; a larger file is hardly written by hand
# In Python 3.11, threads that parse at the same time may get a SystemError (CPython's gh-106905).
_parsing = threading.Lock()


def may_complete(source: str) -> bool:
    """Returns whether a model's file may have the function; if not, no process is started.

    A class with a base class may inherit it. A file that cannot be parsed counts as having it, so
    that Python reports the error.
    """
    if FUNCTION in source:
        return True
    try:
        with _parsing:
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return True
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS]
    return not classes or any(node.bases or node.decorator_list for node in classes)


def docstring_in(source: str) -> str | None:
    """Returns the docstring of the model's class in the text of its file; None if it has none."""
    if _CLASS not in source or len(source) > _MAX_PARSED:
        return None
    try:
        with _parsing:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # loading tells what is wrong
        return None
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS)
    found = next(classes, None)
    return None if found is None else ast.get_docstring(found)


def completed_config(config: Any, text: str) -> Any:
    """Apply the result of the function to the configuration, with the resulting defaults.

    `text` is what the function returned, as JSON. As in Triton, only changes of certain fields are
    applied, and no other scheduler may be chosen.
    """
    try:
        proposed = config_from_dict(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"{FUNCTION} function for model '{config.name}' returned no configuration: {error}"
        ) from None
    completed = type(config)()
    completed.CopyFrom(config)
    completed.max_batch_size = proposed.max_batch_size
    for field in ("input", "output"):
        completed.ClearField(field)
        getattr(completed, field).extend(getattr(proposed, field))
    chosen, wanted = (each.WhichOneof("scheduling_choice") for each in (config, proposed))
    if chosen is None and wanted is not None:
        getattr(completed, wanted).CopyFrom(getattr(proposed, wanted))
    elif wanted != chosen:
        raise InternalError(
            f"Configuration specified scheduling_choice as '{chosen}', but {FUNCTION} function "
            f"for model '{config.name}' tries to set scheduling_choice as '{wanted}'"
        )
    if proposed.HasField("model_transaction_policy"):
        completed.model_transaction_policy.decoupled = proposed.model_transaction_policy.decoupled
    return normalise_config(completed)
