# SPDX-License-Identifier: Apache-2.0
"""The decorator `model`, which declares a model in one place: its function and how it is served."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pytriton.base.lazy_module import LazyModule
from pytriton.base.openai_routes import OpenAI, as_openai
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.common import DynamicBatcher
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.ray_instances import Ray

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

MODEL_ATTRIBUTE = "__pytriton_model__"

Declared = TypeVar("Declared", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class ModelDeclaration:
    """How an annotated function or class is served; `model` has the meaning of each value."""

    name: str | None = None
    version: int = 1
    max_batch_size: int | None = None
    batch_delay_us: int | None = None
    instances: int | Ray = 1
    strict: bool = False
    config: ModelConfig | None = None
    openai: OpenAI | str | None = None

    @property
    def local_instances(self) -> int:
        """The number of instances if they run in the process that binds the model."""
        return 1 if isinstance(self.instances, Ray) else self.instances

    def __post_init__(self) -> None:
        for setting, least in (("version", 1), ("max_batch_size", 1), ("instances", 1)):
            value = getattr(self, setting)
            if isinstance(value, Ray) and setting == "instances":
                continue
            if value is not None and not (type(value) is int and value >= least):
                expected = f"an integer of at least {least}"
                if setting == "instances":
                    expected += " or Ray(...)"
                raise PyTritonValidationError(f"Expected {setting} to be {expected}, got {value!r}")
        as_openai(self.openai)  # it complains of what is wrong
        if self.batch_delay_us is not None and self.max_batch_size is None:
            raise PyTritonValidationError(
                "Expected max_batch_size together with batch_delay_us: without it, requests do "
                "not wait for each other"
            )

    def model_config(self) -> ModelConfig:
        """Returns the settings for `bind`; without a size there are no batches."""
        config = self.config or ModelConfig(batching=False)
        if self.openai is not None:
            config = dataclasses.replace(config, openai=self.openai)
        if self.max_batch_size is None:
            return config
        batcher = config.batcher or DynamicBatcher()
        if self.batch_delay_us is not None:
            batcher = dataclasses.replace(batcher, max_queue_delay_microseconds=self.batch_delay_us)
        return dataclasses.replace(
            config, batching=True, max_batch_size=self.max_batch_size, batcher=batcher
        )


def declaration_of(function: Any) -> ModelDeclaration | None:
    """Returns what `model` has declared; None for any other object.

    A class does not inherit it, because a subclass is another model.
    """
    own = getattr(function, "__dict__", {})
    declared = own.get(MODEL_ATTRIBUTE)
    return declared if isinstance(declared, ModelDeclaration) else None


@overload
def model(function: Declared, /) -> Declared: ...


@overload
def model(
    *,
    name: str | None = None,
    version: int = 1,
    max_batch_size: int | None = None,
    batch_delay_us: int | None = None,
    instances: int | Ray = 1,
    strict: bool = False,
    config: ModelConfig | None = None,
    openai: OpenAI | str | None = None,
) -> Callable[[Declared], Declared]: ...


def model(function: Any = None, /, **settings: Any) -> Any:
    """Declare a function or class as a model, whose tensors its type annotations say.

    The function itself is unchanged and can be called as before. `pytriton serve FILE.py` serves
    all models that a file declares, and `Triton.bind(function)` one of them.

    Args:
        function: a function, a generator, or a class with `__call__`, whose constructor needs no
            arguments.
        **settings: how it is served:
            name: name of the model; default is the name of the function.
            version: version of the model.
            max_batch_size: most rows of a batch. With it, the function gets whole batches: every
                array has one more axis in front, numbers are arrays of one axis, and texts are
                lists. Without it, the function gets one request at a time.
            batch_delay_us: how many microseconds a request may wait for others to join it.
            instances: how many requests or batches run at the same time, each on a thread; for a
                class, how many objects are made. `Ray(...)` runs them on a Ray cluster.
            strict: whether outputs are checked again by the server's own rules.
            config: further settings; its batching is used if `max_batch_size` is not given.
            openai: which of OpenAI's routes serve it, as in `ModelConfig`.

    Returns:
        The function or class; without one, a decorator.

    Raises:
        PyTritonValidationError: A setting is wrong, or it is on something that cannot have it.
        TypeError: There is no setting of this name.
    """
    _check_names(settings)
    declaration = ModelDeclaration(**settings)

    def declare(declared: Declared) -> Declared:
        if not callable(declared):
            raise PyTritonValidationError(
                f"Expected @model on a function or a class, got {declared!r}"
            )
        try:
            setattr(declared, MODEL_ATTRIBUTE, declaration)
        except (AttributeError, TypeError) as error:
            raise PyTritonValidationError(
                f"Expected @model on a function or a class, got {declared!r}, on which attributes "
                "cannot be set"
            ) from error
        return declared

    return declare if function is None else declare(function)


def default_name(function: Any) -> str:
    """Returns the name of a model that is given none: that of its function or class."""
    declaration = declaration_of(function)
    if declaration is not None and declaration.name:
        return declaration.name
    name = getattr(function, "__name__", None) or type(function).__name__
    if not name.isidentifier():
        raise PyTritonValidationError(f"Expected a name for {function!r}, as it has none: give one")
    return str(name)


def _check_names(settings: dict[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(ModelDeclaration)]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise TypeError(
                f"expected only {', '.join(known)} as arguments of @model, got {name}.{hint}"
            )
