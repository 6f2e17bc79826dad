# SPDX-License-Identifier: Apache-2.0
"""The settings of traces: those of the start, and later changes by clients for one or all models.

Their names, messages and rules are Triton's; every value is a list of texts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.utils.trace_config import OFF, TENSORS, TIMESTAMPS, TRITON, read_trace_config

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import Any

    from pytriton.serving.engine.engine import Engine
    from pytriton.utils.trace_config import TraceConfig

Values = dict[str, list[str]]
LEVEL = "trace_level"
_RATE = "trace_rate"
_COUNT = "trace_count"
_LOG_FREQUENCY = "log_frequency"
_LEVELS = (OFF, TIMESTAMPS, TENSORS)
_RANGES = {_RATE: (0, 2**32 - 1), _COUNT: (-1, 2**31 - 1), _LOG_FREQUENCY: (0, 2**32 - 1)}
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_MAX_DIGITS = 20  # of a number that is looked at
ENSEMBLE = "ensemble"  # the platform of models whose steps have traces of their own
_ALL = ""  # used as a model's name


class TraceSampling:
    """Selects one of every `rate` requests that have no trace headers of their client.

    Args:
        rate: One of this many requests; 0: none.
        count: The number of requests at most; -1: no limit.
        log_frequency: The number of traces in one file; 0: all are in one.
        has_timestamps: Whether traces tell times.
        has_tensors: Whether traces tell the tensors of requests and responses.
    """

    __slots__ = (
        "_seen", "count", "has_tensors", "has_timestamps", "left", "log_frequency", "rate"
    )  # fmt: skip

    def __init__(
        self,
        rate: int,
        count: int,
        *,
        log_frequency: int = 0,
        has_timestamps: bool = True,
        has_tensors: bool = False,
    ) -> None:
        self.rate = rate
        self.count = count
        self.left = count
        self.log_frequency = log_frequency
        self.has_timestamps = has_timestamps
        self.has_tensors = has_tensors
        self._seen = 0

    def takes_next(self) -> bool:
        """Returns whether to trace the next request."""
        self._seen += 1
        if not self.rate or self._seen % self.rate:
            return False
        return self.takes_one()

    def takes_one(self) -> bool:
        """Returns whether a request may be traced that was selected elsewhere."""
        if not self.left:
            return False
        if self.left > 0:
            self.left -= 1
        return True

    def takes_of(self, indices: Sequence[int], *, is_sampled: bool) -> Sequence[int]:
        """Returns which of the next requests to trace; `is_sampled`: they were selected elsewhere.

        They have an index each.
        """
        if self.left < 0 and (is_sampled or self.rate == 1):
            return indices
        takes = self.takes_one if is_sampled else self.takes_next
        return [index for index in indices if takes()]

    def passes_next(self) -> bool:
        """Count a request that is not traced; returns False, and counts nothing, if it is."""
        seen = self._seen + 1
        if self.rate and self.left and not seen % self.rate:
            return False
        self._seen = seen
        return True


class TraceSettings:
    """The current settings."""

    def __init__(self, config: TraceConfig) -> None:
        self.config = config
        levels = config.levels or ((TIMESTAMPS,) if config.is_opentelemetry else (OFF,))
        self._first: Values = {
            LEVEL: _ordered(levels),
            _RATE: [str(config.rate)],
            _COUNT: [str(config.count)],
            _LOG_FREQUENCY: [str(config.log_frequency)],
        }
        # Called with the sampling of a setting that was changed.
        self.on_retired: Callable[[TraceSampling], None] | None = None
        self._changed: dict[str, Values] = {_ALL: {}}  # by model
        self._sampling = {_ALL: self._new_sampling(_ALL)}  # of all, and of models with own settings

    @classmethod
    def read(cls, settings: Iterable[str]) -> TraceSettings:
        """Read the settings of the start; InvalidArgumentError if a number is wrong."""
        try:
            return cls(read_trace_config(settings))
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error

    def sampling(self, model_name: str = _ALL) -> TraceSampling | None:
        """Returns the sampling of a model's requests; None if none are traced."""
        return self._sampling.get(model_name, self._sampling[_ALL])

    def rates(self) -> dict[str, int]:
        """Returns the rates of all, under an empty name, and of models with own settings.

        -1 means that nothing is traced.
        """
        return {
            name: -1 if sampling is None else sampling.rate
            for name, sampling in self._sampling.items()
        }

    @property
    def is_off(self) -> bool:
        """Whether traces were neither asked for nor have a place to go to."""
        return not self.config.makes_traces and self._values(_ALL)[LEVEL] == [OFF]

    def view(self, model_name: str = _ALL) -> Values:
        """Returns the settings of a model; without a name, of all models without own settings."""
        values = self._values(model_name)
        sampling = self.sampling(model_name)
        if sampling is not None:
            values[_COUNT] = [str(sampling.left)]
        if self.config.is_opentelemetry:
            del values[_LOG_FREQUENCY]
            return {**values, "trace_mode": [self.config.mode], **_options(self.config)}
        return {**values, "trace_file": [self.config.file], "trace_mode": [TRITON]}

    def update(self, changes: Mapping[str, Sequence[str]], model_name: str = _ALL) -> None:
        """Change settings of a model, or of all; an empty setting is inherited again.

        Raises:
            ServerError: a value is wrong; no setting is changed then.
        """
        changed = dict(self._changed.get(model_name, {}))
        for name, texts in changes.items():
            if name == "trace_file":
                raise UnsupportedError(
                    "trace file location can not be updated through network protocol"
                )
            if name in self._first:
                changed.pop(name, None)
                if texts:
                    changed[name] = _read_value(name, texts)
        self._check({**self._changed[_ALL], **changed})
        self._changed[model_name] = changed
        for name in [model_name] if model_name else list(self._changed):
            self._renew(name)

    def _renew(self, name: str) -> None:
        """Begin anew with the current settings of a model, or of all."""
        replaced = self._sampling.pop(name, None)
        if self._changed[name] or name == _ALL:
            self._sampling[name] = self._new_sampling(name)
        else:  # all its settings are inherited again
            del self._changed[name]
        if replaced is not None and self.on_retired is not None:
            self.on_retired(replaced)

    def _values(self, model_name: str) -> Values:
        return {**self._first, **self._changed[_ALL], **self._changed.get(model_name, {})}

    def _check(self, changed: Values) -> None:
        values = {**self._first, **changed}
        if values[LEVEL] == [OFF]:
            return
        # With OpenTelemetry, a rate of 0 at the start means those that their clients trace.
        rates = changed if self.config.is_opentelemetry else values
        if not self.config.makes_traces:
            reason = "trace file name is not given"
        elif rates.get(_RATE) == ["0"]:
            reason = "sample rate must be non-zero"
        elif changed.get(_COUNT) == ["0"]:
            reason = "trace count must be non-zero"
        else:
            return
        raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")

    def _new_sampling(self, model_name: str) -> TraceSampling | None:
        values = self._values(model_name)
        levels = values[LEVEL]
        if levels == [OFF] or not self.config.makes_traces:
            return None
        return TraceSampling(
            int(values[_RATE][0]),
            int(values[_COUNT][0]),
            log_frequency=int(values[_LOG_FREQUENCY][0]),
            has_timestamps=TIMESTAMPS in levels,
            has_tensors=TENSORS in levels,
        )


def _options(config: TraceConfig) -> Values:
    options = {"url": config.endpoint}
    if config.resource:
        options["resource"] = ",".join(f"{key}={text}" for key, text in config.resource.items())
    batching = config.batching
    options["bsp_max_queue_size"] = str(batching["max_queue_size"])
    options["bsp_schedule_delay"] = str(batching["schedule_delay_millis"])
    options["bsp_max_export_batch_size"] = str(batching["max_export_batch_size"])
    return {name: [text] for name, text in options.items()}


def _read_value(name: str, texts: Sequence[str]) -> list[str]:
    if name == LEVEL:
        return _read_levels(texts)
    if len(texts) != 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    (text,) = texts
    if not _INTEGER.fullmatch(text):
        raise InvalidArgumentError(f"Unable to parse '{name}', got: {text}")
    low, high = _RANGES[name]
    number = int(text) if len(text) <= _MAX_DIGITS else high + 1
    if name == _COUNT and number < low:
        raise InvalidArgumentError(f"Unable to parse '{name}'. Expecting value >= -1, got:{text}")
    if not low <= number <= high:
        raise InvalidArgumentError(
            f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {text}"
        )
    return [str(number)]


def _read_levels(texts: Sequence[str]) -> list[str]:
    unknown = [text for text in texts if text not in _LEVELS]
    if unknown:
        raise InvalidArgumentError(
            f"Expected trace levels out of {', '.join(_LEVELS)}, got: {', '.join(unknown)}"
        )
    if OFF in texts and len(texts) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    return _ordered(texts)


def _ordered(levels: Iterable[str]) -> list[str]:
    """Returns levels once each, in Triton's order; OFF is none beside others."""
    given = set(levels)
    return [level for level in (TIMESTAMPS, TENSORS) if level in given] or [OFF]


class TraceService:
    """Changes the settings of a server and of its models for clients."""

    def __init__(self, engine: Engine, settings: TraceSettings) -> None:
        self._engine = engine
        self._settings = settings

    def change(
        self, model_name: str, changes: Mapping[str, Sequence[str]]
    ) -> Values | Coroutine[Any, Any, Values]:
        """Change settings of a model, or of all without a name; returns the new settings.

        They are known when all front ends know them: the next request may reach any of these.

        Raises:
            ServerError: There is no such model, or a value is wrong.
        """
        engine = self._engine
        if model_name and engine.find(model_name) is None:
            raise InvalidArgumentError(f"Request for unknown model : {model_name}")
        if changes:
            self._settings.update(changes, model_name)
            if engine.settled is not None:
                engine.on_changed()
                return self._view_when(engine.settled(), model_name)
        return self._settings.view(model_name)

    async def _view_when(self, settled: Awaitable[None], model_name: str) -> Values:
        await settled
        return self._settings.view(model_name)
