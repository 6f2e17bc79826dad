# SPDX-License-Identifier: Apache-2.0
"""Messages between the server and a worker that runs a `model.py`, other than batches and answers.

A worker first receives `Initialize` and sends `Initialized`; last it receives `Finalize` and exits.
In between it may call other models and the server's services, from any of its threads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pytriton.log_switches import LogSwitches
from pytriton.messages import ParameterValue, TraceContext
from pytriton.transport.refs import MemoryUpdate, TensorRef


class Initialize(msgspec.Struct, tag="initialize", array_like=True):
    """Server to worker, first: the file to import, and the arguments of its `initialize`."""

    model_path: str  # the absolute path of the file
    package: str  # the package that it is imported in: the version
    arguments: dict[str, str]
    output_names: list[str]  # all configured outputs
    is_decoupled: bool = False
    is_batching: bool = False  # inputs have a batch dimension, along which they are split
    completes_config: bool = False  # only `auto_complete_config` is called, then the worker ends
    memory: MemoryUpdate | None = None
    log: LogSwitches = LogSwitches()


class Initialized(msgspec.Struct, tag="initialized", array_like=True):
    """Worker to server: the model can run batches, or the reason why it cannot."""

    error: str = ""
    config: str = ""  # the JSON result of `auto_complete_config`
    has_ready_check: bool = False  # the model has `is_ready`
    is_async: bool = False  # `execute` is a coroutine function: its calls run concurrently
    memory: MemoryUpdate | None = None


class Finalize(msgspec.Struct, tag="finalize", array_like=True):
    """Server to worker, last: call `finalize`, then exit."""

    memory: MemoryUpdate | None = None


class CheckReady(msgspec.Struct, tag="check", array_like=True):
    """Server to worker: call `is_ready`."""

    call: int
    memory: MemoryUpdate | None = None


class ReadyReport(msgspec.Struct, tag="ready", array_like=True):
    """Worker to server: the result of `is_ready`."""

    call: int
    is_ready: bool
    memory: MemoryUpdate | None = None


class InferCall(msgspec.Struct, tag="infer", array_like=True):
    """Worker to server: infer with another model. The worker numbers its calls."""

    call: int
    model_name: str
    model_version: int  # -1: the newest
    inputs: list[TensorRef]
    outputs: list[str] = []  # empty: all
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    parameters: dict[str, ParameterValue] = {}
    is_decoupled: bool = False  # the caller accepts any number of responses
    blocked_batch: int = 0  # the batch whose `execute` blocks the model's thread on this call, or 0
    trace: TraceContext | None = None  # of the request for which the call is made
    memory: MemoryUpdate | None = None
    batch: int = 0  # the batch whose `execute` made the call, if known and not `blocked_batch`
    blocks_loop: bool = False  # the blocked thread is the one that runs all batches' coroutines


class InferReply(msgspec.Struct, tag="reply", array_like=True):
    """Server to worker: a response to an `InferCall`, an error, or an end without tensors."""

    call: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    memory: MemoryUpdate | None = None


class CancelCall(msgspec.Struct, tag="cancel_call", array_like=True):
    """Worker to server: the caller cancels an `InferCall`; its end is still reported."""

    call: int
    memory: MemoryUpdate | None = None


class CallCredit(msgspec.Struct, tag="call_credit", array_like=True):
    """Worker to server: the caller consumed `count` more responses of a decoupled `InferCall`."""

    call: int
    count: int
    memory: MemoryUpdate | None = None


class ServiceCall(msgspec.Struct, tag="service", array_like=True):
    """Worker to server: a call of a service; `docs/architecture.md` lists the actions."""

    call: int  # 0: no reply is expected
    action: str
    arguments: dict[str, Any]
    memory: MemoryUpdate | None = None


class ServiceReply(msgspec.Struct, tag="service_reply", array_like=True):
    """Server to worker: the result of a `ServiceCall`, or an error."""

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
    request_ids: list[str] = []  # of those requests that caused it, as the log shows them
