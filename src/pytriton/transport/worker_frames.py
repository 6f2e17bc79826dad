# SPDX-License-Identifier: Apache-2.0
"""What the server and a process that runs a `model.py` say beside batches and their answers.

A worker hears `Initialize` first and says `Initialized`; it hears `Finalize` last and ends. Between
them it may call other models and the server's services, from any of its threads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pytriton.messages import ParameterValue, TraceContext
from pytriton.transport.refs import MemoryUpdate, TensorRef


class Initialize(msgspec.Struct, tag="initialize", array_like=True):
    """Server to worker, first: which file to import, and what its `initialize` gets."""

    model_path: str  # the file, absolute
    package: str  # that it is imported in: the version
    arguments: dict[str, str]
    output_names: list[str]  # all that are configured
    is_decoupled: bool = False
    is_batching: bool = False  # inputs have a batch dimension, along which requests are cut
    completes_config: bool = False  # only `auto_complete_config` is called, then the worker ends
    memory: MemoryUpdate | None = None


class Initialized(msgspec.Struct, tag="initialized", array_like=True):
    """Worker to server: the model can take batches, or the reason why not."""

    error: str = ""
    config: str = ""  # JSON that `auto_complete_config` made
    has_ready_check: bool = False  # the model has `is_ready`
    is_async: bool = False  # `execute` is a coroutine function: calls of it overlap
    memory: MemoryUpdate | None = None


class Finalize(msgspec.Struct, tag="finalize", array_like=True):
    """Server to worker, last: call `finalize`, then end."""

    memory: MemoryUpdate | None = None


class CheckReady(msgspec.Struct, tag="check", array_like=True):
    """Server to worker: call `is_ready`."""

    call: int
    memory: MemoryUpdate | None = None


class ReadyReport(msgspec.Struct, tag="ready", array_like=True):
    """Worker to server: what `is_ready` said."""

    call: int
    is_ready: bool
    memory: MemoryUpdate | None = None


class InferCall(msgspec.Struct, tag="infer", array_like=True):
    """Worker to server: infer with another model. Numbers of calls are the worker's."""

    call: int
    model_name: str
    model_version: int  # -1: the newest
    inputs: list[TensorRef]
    outputs: list[str] = []  # none: all
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    parameters: dict[str, ParameterValue] = {}
    is_decoupled: bool = False  # the caller takes any number of responses
    blocked_batch: int = 0  # whose `execute` waits for this call on the model's thread; 0: none
    trace: TraceContext | None = None  # of the request that it is made for
    memory: MemoryUpdate | None = None
    batch: int = 0  # in whose `execute` it was made, where that is known and does not wait above
    blocks_loop: bool = False  # what waits is the thread that the coroutines of all batches share


class InferReply(msgspec.Struct, tag="reply", array_like=True):
    """Server to worker: a response to an `InferCall`, or the error or bare end in its place."""

    call: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    memory: MemoryUpdate | None = None


class CancelCall(msgspec.Struct, tag="cancel_call", array_like=True):
    """Worker to server: the caller gives an `InferCall` up; its end is still reported."""

    call: int
    memory: MemoryUpdate | None = None


class CallCredit(msgspec.Struct, tag="call_credit", array_like=True):
    """Worker to server: the caller took so many more responses of a decoupled `InferCall`."""

    call: int
    count: int
    memory: MemoryUpdate | None = None


class ServiceCall(msgspec.Struct, tag="service", array_like=True):
    """Worker to server: something that is no inference; `docs/architecture.md` has the actions."""

    call: int  # 0: no reply is wanted
    action: str
    arguments: dict[str, Any]
    memory: MemoryUpdate | None = None


class ServiceReply(msgspec.Struct, tag="service_reply", array_like=True):
    """Server to worker: the value that a `ServiceCall` asked for, or an error."""

    call: int
    value: Any = None
    error: str | None = None
    memory: MemoryUpdate | None = None


class LogLine(msgspec.Struct, tag="log", array_like=True):
    """Worker to server: a line for the server's log."""

    level: str  # INFO, WARNING, ERROR or VERBOSE
    message: str
    file: str
    line: int
    memory: MemoryUpdate | None = None
