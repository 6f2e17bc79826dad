# SPDX-License-Identifier: Apache-2.0
"""Where `libtritonserver.so` enters Python: fills its table with the functions that serve it.

Errors are objects of the C code, and all servers of the process share one log. As in Triton,
settings of the log hold from the moment they are set, whichever options they are set with.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from typing import Any

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, error_from_code
from pytriton.base.log_switches import LogSwitches
from pytriton.inprocess.c_library.exchange import Inferences, Traces
from pytriton.inprocess.c_library.options import OptionHandles
from pytriton.inprocess.c_library.servers import (
    CallerServers,
    MetricReports,
    ProcessMetrics,
    ServedModelFunctions,
)
from pytriton.runtime.native_backend.callbacks import Callbacks, export, exported
from pytriton.runtime.native_backend.caller_requests import CallerRequests
from pytriton.runtime.native_backend.caller_responses import Allocators, CallerResponses
from pytriton.runtime.native_backend.memory import decoded, required_text
from pytriton.runtime.native_backend.metrics import MetricFunctions
from pytriton.runtime.native_backend.server_objects import (
    BufferAttributes,
    Documents,
    Errors,
    ModelProperties,
    Names,
    Parameters,
)
from pytriton.serving.server.process.event_loop import freeze_memory
from pytriton.serving.server.process.logs import (
    ConsoleHandler,
    LogFile,
    LogHandler,
    formatter_factory,
)

_LOGGER = logging.getLogger("pytriton")
_FORMATS = ("default", "ISO8601")
# By TRITONSERVER_LogLevel; the last one is verbose.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class Log:
    """Writes to standard error, or to a file."""

    def __init__(self) -> None:
        self._switches = LogSwitches()
        self._handler: LogHandler = ConsoleHandler(sys.stderr, sys.stderr)

    def open(self) -> None:
        """Begin to write what the package logs."""
        _LOGGER.propagate = False  # an application in Python has a log of its own
        _LOGGER.addHandler(self._handler)
        self._use(self._switches)

    def _use(self, switches: LogSwitches) -> None:
        self._switches = switches
        self._handler.use(switches, formatter_factory(switches))
        _LOGGER.setLevel(switches.lowest_level)

    def _change(self, **changes: object) -> None:
        self._use(msgspec.structs.replace(self._switches, **changes))

    @export("TRITONSERVER_ServerOptionsSetLogFile")
    def _set_file(self, _options: int, path: bytes | None) -> None:
        name = required_text(path)
        try:
            handler = LogFile(name, logging.Formatter()) if name else None
        except OSError as error:
            raise InvalidArgumentError(f"failed opening log file: {error}") from None
        _LOGGER.removeHandler(self._handler)
        self._handler.close()
        self._handler = handler or ConsoleHandler(sys.stderr, sys.stderr)
        self.open()

    @export("TRITONSERVER_ServerOptionsSetLogInfo")
    def _set_info(self, _options: int, is_enabled: bool) -> None:
        self._change(info=is_enabled)

    @export("TRITONSERVER_ServerOptionsSetLogWarn")
    def _set_warning(self, _options: int, is_enabled: bool) -> None:
        self._change(warning=is_enabled)

    @export("TRITONSERVER_ServerOptionsSetLogError")
    def _set_error(self, _options: int, is_enabled: bool) -> None:
        self._change(error=is_enabled)

    @export("TRITONSERVER_ServerOptionsSetLogVerbose")
    def _set_verbose(self, _options: int, level: int) -> None:
        self._change(verbose=max(0, level))

    @export("TRITONSERVER_ServerOptionsSetLogFormat")
    def _set_format(self, _options: int, number: int) -> None:
        if not 0 <= number < len(_FORMATS):
            raise InvalidArgumentError(f"unknown log format '{number}'")
        self._change(format=_FORMATS[number])

    @export("TRITONSERVER_LogIsEnabled")
    def _is_enabled(self, level: int) -> bool:
        return 0 <= level < len(_LEVELS) and self._switches.wants(_LEVELS[level])

    @export("TRITONSERVER_LogMessage")
    def _write(self, level: int, file: bytes | None, line: int, text: bytes | None) -> None:
        if not 0 <= level < len(_LEVELS):
            raise InvalidArgumentError(f"unknown logging level '{level}'")
        if self._switches.wants(_LEVELS[level]):
            record = logging.LogRecord(
                _LOGGER.name, _LEVELS[level], decoded(file), line, "%s", (decoded(text),), None
            )
            _LOGGER.handle(record)


_KINDS: tuple[Any, ...] = (
    ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int32, ctypes.c_char_p),  # new
    ctypes.CFUNCTYPE(None, ctypes.c_uint64),  # delete
    ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64),  # code
    ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_uint64),  # message
)


class LibraryErrors(Errors):
    """The errors of `library.c`, whose functions are at an address."""

    def __init__(self, address: int) -> None:
        super().__init__()
        addresses = (ctypes.c_uint64 * len(_KINDS)).from_address(address)
        functions = [kind(each) for kind, each in zip(_KINDS, addresses, strict=True)]
        self._make, self._free, self._code_of, self._message_of = functions

    def new(self, code: int, message: str | bytes) -> int:
        """Make an error object, which belongs to the application."""
        text = message.encode("utf-8", "backslashreplace") if isinstance(message, str) else message
        handle: int = self._make(code, text.replace(b"\0", b"\\0"))
        return handle

    def read(self, handle: int) -> ServerError:
        """Returns what an error object of the application says."""
        message = self._message_of(handle).decode(errors="backslashreplace")
        try:
            return error_from_code(self._code_of(handle), message)
        except ValueError:  # no code of Triton's
            return InternalError(message)

    def take(self, handle: int) -> ServerError:
        """Returns what an error object says that the application has passed to us; deletes it."""
        error = self.read(handle)
        self._free(handle)
        return error


logger = logging.getLogger(__name__)
_kept: list[object] = []  # C may call at any time


class _Slot(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_uint64))


def fill(slots: int, count: int, errors_address: int, is_own_python: bool) -> None:
    """Serve the library.

    Args:
        slots: The address of the table: names and functions.
        count: Its length.
        errors_address: The address of the library's own functions for errors.
        is_own_python: Whether the library has started this Python, and not the application.
    """
    errors = LibraryErrors(errors_address)
    documents, parameters, attributes = Documents(), Parameters(), BufferAttributes()
    options, metrics, reports, log = OptionHandles(), ProcessMetrics(), MetricReports(), Log()
    servers = CallerServers(options, documents, parameters, metrics, reports)
    allocators = Allocators(errors, attributes)
    requests = CallerRequests(servers.find, allocators, attributes)
    responses, traces = CallerResponses(errors), Traces()
    groups = (
        Names(), log, documents, parameters, attributes, options, reports, servers,
        MetricFunctions(metrics.perform, metrics.perform, parameters),
        ServedModelFunctions(servers, documents), ModelProperties(servers.properties),
        allocators, requests, responses, traces, Inferences(servers, requests, responses, traces),
    )  # fmt: skip
    callbacks = Callbacks({**exported(*groups), **options.setters()}, errors, _report)
    log.open()
    _kept.append(callbacks)
    for slot in (_Slot * count).from_address(slots):
        slot.function = callbacks.address(slot.name.decode())
    if is_own_python:
        freeze_memory()  # a request then takes 30 us less of 540


def _report(name: str, error: BaseException) -> None:
    logger.error("%s failed", name, exc_info=error)
