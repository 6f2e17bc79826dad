# SPDX-License-Identifier: Apache-2.0
"""The model that the arguments of `bind` describe, with tensors from annotations if need be."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.documentation import (
    Documentation,
    docstring_of,
    examples_to_show,
    read_docstring,
)
from pytriton.base.lazy_module import LazyModule
from pytriton.decorators.declaration import ModelDeclaration, declaration_of, default_name
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.ray_instances import Ray
from pytriton.models.references import (
    check_constructor,
    import_paths,
    is_maker,
    parse_reference,
    reference_to,
    resolve,
)
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.functions.ray_model import GivenFunction, RayModel

if TYPE_CHECKING:
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.models.references import Reference
    from pytriton.runtime.functions.bound_config import AnyModel
    from pytriton.runtime.functions.bound_model import InferFunc
    from pytriton.runtime.signatures import served
    from pytriton.runtime.signatures.served import AnnotatedModel
else:  # it takes 24 ms to import, and models whose tensors are given do not need it
    served = LazyModule("pytriton.runtime.signatures.served")


@dataclass(frozen=True, slots=True)
class BindArguments:
    """The arguments of `TritonBase.bind` that describe a model; None is for those not given."""

    model_name: str | InferFunc
    infer_func: str | InferFunc | Sequence[InferFunc] | None = None
    inputs: Sequence[Tensor] | None = None
    outputs: Sequence[Tensor] | None = None
    model_version: int | None = None
    config: ModelConfig | None = None
    strict: bool | None = None
    instances: Ray | None = None

    def name_and_function(self) -> tuple[str, Any]:
        """Returns the name of the model, and what was given to be served.

        Raises:
            PyTritonValidationError: One of them is missing.
        """
        name, function = self.model_name, self.infer_func
        if isinstance(name, str):
            if function is None:
                raise PyTritonValidationError(
                    f"infer_func of model {name!r} has to be a callable, got None"
                )
            return name, function
        if function is not None or not callable(name):
            raise PyTritonValidationError(
                f"Expected the name of a model, or an annotated callable alone, got {name!r}"
            )
        return default_name(name), name

    def version_and_strictness(self, declared: ModelDeclaration) -> tuple[int, bool]:
        """Returns those that were given, or else declared."""
        version, strict = self.model_version, self.strict
        return (
            declared.version if version is None else version,
            declared.strict if strict is None else strict,
        )


def make_model(given: BindArguments) -> AnyModel:
    """Make a model of the arguments of `bind`, with instances where they are wanted.

    Raises:
        PyTritonValidationError: An argument is wrong.
    """
    config = given.config
    if config is not None and not hasattr(config, "max_batch_size"):
        raise PyTritonValidationError(f"config: expected a ModelConfig, got {config!r}")
    instances = given.instances
    if instances is None:
        function = given.infer_func if isinstance(given.model_name, str) else given.model_name
        declared = _declaration(function).instances
        instances = declared if isinstance(declared, Ray) else None
    if instances is not None and not isinstance(instances, Ray):
        raise PyTritonValidationError(
            f"Expected instances to be Ray(...), got {instances!r}. For several instances in this "
            "process, give a list of callables."
        )
    if instances is not None:
        return _ray_model(given, instances)
    if isinstance(given.infer_func, str):
        raise PyTritonValidationError(
            "infer_func has to be a callable or a list or tuple of callables, got "
            f"{given.infer_func!r}. The name of a function is for instances that run elsewhere, as "
            "with instances=Ray()."
        )
    return bound_model(given)


def bound_model(given: BindArguments, count: int | None = None) -> BoundModel:
    """Make a model whose instances are in this process.

    Args:
        given: the arguments of `bind`.
        count: number of instances of an annotated callable, if it is not what that declares.

    Raises:
        PyTritonValidationError: An argument is wrong, or annotations do not say the tensors.
    """
    name, function = given.name_and_function()
    declared = _declaration(function)
    inputs, outputs, config = given.inputs, given.outputs, given.config
    examples: Mapping[str, Any] = {}
    nullable: tuple[str, ...] = ()
    # An annotated function is called with values for its inputs, and with nothing else.
    takes_parameters = inputs is not None and outputs is not None
    if inputs is None or outputs is None:
        function, inputs, outputs, config, examples, nullable = served.served_model(
            function, inputs, outputs, config, count
        )
    version, strict = given.version_and_strictness(declared)
    model = BoundModel(name, function, inputs, outputs, version, config, strict=strict)
    model.examples = examples
    model.takes_parameters = takes_parameters
    model.nullable = nullable
    model.documentation = _documentation(given.name_and_function()[1], examples)
    return model


def _ray_model(given: BindArguments, instances: Ray) -> RayModel:
    """Make a model whose instances are actors of a Ray cluster.

    Raises:
        PyTritonValidationError: An argument is wrong, the function cannot be imported elsewhere, or
            annotations do not say the tensors.
    """
    name, function = given.name_and_function()
    if isinstance(function, Sequence) and not isinstance(function, str):
        raise PyTritonValidationError(
            f"Expected one function for model {name!r}, got a list of {len(function)}: "
            "instances=Ray(...) says how many instances there are, as in Ray(count=2)"
        )
    reference = parse_reference(function) if isinstance(function, str) else reference_to(function)
    inputs, outputs, config = given.inputs, given.outputs, given.config
    source = GivenFunction(str(reference), import_paths(), inputs, outputs)
    examples: Mapping[str, Any] = {}
    nullable: tuple[str, ...] = ()
    # An annotated function is called with values for its inputs, and with nothing else.
    takes_parameters = inputs is not None and outputs is not None
    if inputs is None or outputs is None:
        function = _importable(reference)
        _, inputs, outputs, config, examples, nullable = _described(
            function, reference, inputs, outputs, config
        )
    version, strict = given.version_and_strictness(_declaration(function))
    model = RayModel(name, source, inputs, outputs, version, config, instances, strict=strict)
    model.examples = examples
    model.takes_parameters = takes_parameters
    model.nullable = nullable
    model.documentation = _documentation(function, examples)
    return model


def _documentation(function: Any, examples: Mapping[str, Any]) -> Documentation:
    """Returns what the docstring of a callable says, or of the first of several."""
    if isinstance(function, str):  # the name of a function that is not imported here
        return Documentation()
    first = function[0] if isinstance(function, Sequence) else function
    read = read_docstring(docstring_of(first))
    return msgspec.structs.replace(read, examples=examples_to_show(examples))


def _described(
    function: Any,
    reference: Reference,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
) -> AnnotatedModel:
    if inspect.isclass(function):
        check_constructor(function, reference)
    elif is_maker(function):
        raise PyTritonValidationError(
            f"Expected inputs and outputs for {reference}: it takes no arguments, so that it is a "
            "factory, and what it makes has no annotations that could be read here"
        )
    return served.described_model(function, inputs, outputs, config)


def _importable(reference: Reference) -> Any:
    try:
        function = resolve(reference)
    except Exception as error:  # a module may raise anything
        raise PyTritonValidationError(
            f"Expected {reference} to be importable in this process, to read its annotations, got "
            f"{type(error).__name__}: {error}. If it is importable only where it runs, give inputs "
            "and outputs."
        ) from error
    if not callable(function):
        raise PyTritonValidationError(
            f"Expected a function or a class, but {reference} is of type {type(function).__name__}"
        )
    return function


def _declaration(function: Any) -> ModelDeclaration:
    if isinstance(function, Sequence):
        return ModelDeclaration()
    return declaration_of(function) or ModelDeclaration()
