# SPDX-License-Identifier: Apache-2.0
"""The names of the tensors of a `.pt2` file, from the JSON text that describes its arguments.

A tensor has a number and a name by structure, for example `INPUT__1` and `ARGS[0][key]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.pytorch.configuration import TensorEntry

_SEQUENCES = ("builtins.tuple", "builtins.list", "collections.namedtuple")
_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")


def input_names(spec_text: str) -> list[tuple[str, ...]]:
    """Returns all names of each input tensor, in the order in which the model takes them.

    Args:
        spec_text: The structure of positional and keyword arguments, as torch writes it.

    Raises:
        InternalError: The model takes other structures than tuples, lists and dictionaries.
    """
    positional, keywords = _root(spec_text)["children_spec"]
    names: list[tuple[str, ...]] = [(name,) for name in _names(positional, "ARGS")]
    for key, child in _children(keywords):
        # Triton's backend leaves out the brackets of keywords, which its documentation has.
        names += zip(_names(child, f"KWARGS[{key}]"), _names(child, f"KWARGS{key}"), strict=True)
    return [(f"INPUT__{index}", *each) for index, each in enumerate(names)]


def output_names(spec_text: str) -> list[tuple[str, ...]]:
    """Returns all names of each output tensor, in the order in which the model returns them.

    Raises:
        InternalError: The model returns other structures than tuples, lists and dictionaries.
    """
    names = _names(_root(spec_text), "RESULT")
    return [(f"OUTPUT__{index}", name) for index, name in enumerate(names)]


def bind_inputs(
    model: str, instance: str, entries: Iterable[TensorEntry], names: list[tuple[str, ...]]
) -> dict[str, int]:
    """Returns the position of each configured input.

    Raises:
        InternalError: The model has no such input, or one is missing or configured twice.
    """
    positions = _positions("Input", instance, entries, names)
    if len(positions) != len(names):
        raise InternalError(
            f'Failed to load model "{model}": configuration expects {len(positions)} inputs, but '
            f"model expects {len(names)} inputs."
        )
    by_position: dict[int, str] = {}
    for name, position in positions.items():
        if position in by_position:
            raise InternalError(
                f'Failed to load model "{model}": inputs "{by_position[position]}" and "{name}" '
                "are the same tensor of the model."
            )
        by_position[position] = name
    return positions


def bind_outputs(
    instance: str, entries: Iterable[TensorEntry], names: list[tuple[str, ...]]
) -> dict[str, int]:
    """Returns the position of each configured output, which may be fewer than the model has.

    Raises:
        InternalError: The model has no such output.
    """
    return _positions("Output", instance, entries, names)


def _positions(
    kind: str, instance: str, entries: Iterable[TensorEntry], names: list[tuple[str, ...]]
) -> dict[str, int]:
    by_name = {name: position for position, each in enumerate(names) for name in each}
    positions = {}
    for entry in entries:
        position = by_name.get(entry.name)
        if position is None:
            known = ", ".join(" or ".join(each) for each in names)
            raise InternalError(
                f'{kind} "{entry.name}" for model instance "{instance}" is not found in model '
                f"{kind.lower()} map. The model has {known or 'none'}"
            )
        positions[entry.name] = position
    return positions


def _root(spec_text: str) -> Mapping[str, Any]:
    _version, root = json.loads(spec_text)
    return dict(root)


def _names(spec: Mapping[str, Any], name: str) -> Iterator[str]:
    if spec["type"] is None:
        yield name
        return
    for key, child in _children(spec):
        yield from _names(child, f"{name}[{key}]")


def _children(spec: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    children = spec["children_spec"]
    if spec["type"] in _SEQUENCES:
        return [(str(index), child) for index, child in enumerate(children)]
    if spec["type"] in _DICTIONARIES:
        keys = json.loads(spec["context"])
        return [(str(key), child) for key, child in zip(keys, children, strict=True)]
    raise InternalError(
        f"expected tuples, lists and dictionaries of tensors in the model, got {spec['type']}"
    )
