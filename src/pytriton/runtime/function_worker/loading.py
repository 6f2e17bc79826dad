# SPDX-License-Identifier: Apache-2.0
"""Makes the model of a bound function that this process imports, from what its `bind` was given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.errors import InvalidArgumentError, NotFoundError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.tensor import Tensor
from pytriton.models.binding import BindArguments, bound_model
from pytriton.models.references import (
    Reference,
    add_import_paths,
    is_maker,
    make_function,
    parse_reference,
    resolve,
)

if TYPE_CHECKING:
    from pytriton.runtime.functions.bound_model import BoundModel
    from pytriton.runtime.transport.frames import FunctionSource, FunctionTensor

_WAYS_OUT = (
    "Install it on every node, put it into a folder that all nodes have under the same path, or "
    "give the server the folder as ray_working_dir"
)


def find_target(source: FunctionSource) -> tuple[Any, Reference]:
    """Import the function, class or factory of a model.

    Raises:
        NotFoundError: This machine does not have the module, or the module no such object. The
            module itself may raise anything.
    """
    reference = parse_reference(source.reference)
    add_import_paths(source.search_paths)
    try:
        return resolve(reference), reference
    except ModuleNotFoundError as error:
        if not _is_part_of(error.name, reference.module):
            raise  # a module that it imports
        raise NotFoundError(
            f"Expected the module {reference.module!r} of {reference}, but {sys.executable} does "
            f"not find {error.name!r} there, not even in "
            f"{', '.join(source.search_paths) or 'folders of the binding process'}. {_WAYS_OUT}."
        ) from error
    except AttributeError as error:
        module = sys.modules.get(reference.module)
        if module is None or hasattr(module, reference.name.split(".", maxsplit=1)[0]):
            raise
        raise NotFoundError(
            f"Expected {reference.name!r} in the module {reference.module!r} "
            f"({getattr(module, '__file__', 'built in')}), which has no such name"
        ) from error


def load_function(
    source: FunctionSource, name: str, version: int, group_size: int = 1
) -> BoundModel:
    """Import the function, or make it, and return the model that it is.

    Raises:
        PyTritonValidationError: The function or an argument of its `bind` is wrong. Code of users
            may raise anything.
    """
    target, reference = find_target(source)
    check_group(target, reference, group_size)
    config = _model_config(source.config)
    given = BindArguments(
        name,
        make_function(target, reference),
        _tensors(source.inputs),
        _tensors(source.outputs),
        version,
        config,
        source.is_strict,
    )
    model = bound_model(given, count=1)
    _check_tensors(model.message(), source.config, reference)
    return model


def make_follower(source: FunctionSource, group_size: int) -> Callable[[], object] | None:
    """Call the factory in a process that gets no batches; returns what it has to do, if anything.

    Raises:
        InvalidArgumentError: It is no factory, or returns something else than a function or None.
    """
    target, reference = find_target(source)
    check_group(target, reference, group_size)
    work: Any = target()
    if work is not None and not callable(work):
        raise InvalidArgumentError(
            f"Expected {reference} to return a function without arguments or None where RANK is "
            f"not 0, got an object of {type(work).__name__}"
        )
    made: Callable[[], object] | None = work
    return made


def check_group(target: Any, reference: Reference, group_size: int) -> None:
    """Refuse a function that is no factory, where several processes are one instance."""
    if group_size > 1 and not is_maker(target):
        raise InvalidArgumentError(
            f"Expected a factory for instances of {group_size} actors, got {reference}, which "
            "takes arguments: each of them calls it once, to begin its part of the work"
        )


def _is_part_of(name: str | None, module: str) -> bool:
    return name is not None and (module == name or module.startswith(f"{name}."))


def _tensors(records: Sequence[FunctionTensor] | None) -> list[Tensor] | None:
    if records is None:
        return None
    return [
        Tensor(
            shape=tuple(each.shape),
            dtype=getattr(np, each.dtype),
            name=each.name,
            optional=each.is_optional,
        )
        for each in records
    ]


def _model_config(message: Mapping[str, Any]) -> ModelConfig:
    """Returns the settings of a ModelConfig message that `bind` knows."""
    rest = {name: value for name, value in message.items() if name not in ("input", "output")}
    config = ModelConfigParser.from_dict(rest)
    return ModelConfig(
        batching=config.batching,
        max_batch_size=config.max_batch_size,
        batcher=config.batcher,
        response_cache=config.response_cache is not None and config.response_cache.enable,
        decoupled=config.decoupled,
        model_warmup=config.model_warmup,
        sequence=config.sequence,
        rate_limiter=config.rate_limiter,
        openai=config.openai,
    )


def _check_tensors(
    message: Mapping[str, Any], expected: Mapping[str, Any], reference: Reference
) -> None:
    """Refuse annotations that are others than those of the process that bound the model."""
    for kind in ("input", "output", "model_transaction_policy"):
        ours, theirs = message.get(kind), expected.get(kind)
        if ours != theirs:
            raise InvalidArgumentError(
                f"Expected the same {kind} of {reference} as in the process that bound it, "
                f"{theirs}, got {ours}: this node has another version of the module"
            )
