# SPDX-License-Identifier: Apache-2.0
"""Messages between the core of a server and a front end in a process of its own.

The core sends `Configure` and a `Registry` first; the front end serves clients after that. Each
request of a front end has a number, its call, which is not used again before its final reply.
"""
# ruff: noqa: RUF012  these are structs of msgspec, which copies defaults
# Annotations are no strings here: msgspec would compile them, which takes half of their import.

from typing import Any

import msgspec

from pytriton.base.failure_records import FailureGroup
from pytriton.base.log_lines import LogLines
from pytriton.base.log_switches import LogSwitches
from pytriton.base.messages import (
    ChunkOrigins,
    DeviceUse,
    ParameterValue,
    RequestCost,
    RequestFields,
    TraceOrigin,
)
from pytriton.runtime.transport.refs import FrameBase, TensorRef


class Configure(FrameBase, tag="configure"):
    """Core to front end, first: the options of the server."""

    options: bytes  # a `ServerOptions` in MessagePack
    log: LogSwitches
    memory_bytes: int  # the limit of its shared memory
    policy: bytes = b""  # who may do what, as in `PolicyChange`; empty: there is no policy


class PolicyChange(FrameBase, tag="policy"):
    """Core to front end: who may do what from now on."""

    policy: bytes  # a `Policy` in MessagePack


class AccessRefusals(FrameBase, tag="access_refusals"):
    """Front end to core: how many requests it has refused since the last report, by reason."""

    counts: dict[str, int]


class CredentialFailures(FrameBase, tag="credential_failures"):
    """Front end to core, which passes it on to the others: wrong credentials since the last one."""

    counts: dict[str, int]  # by address


class KeysWithdrawn(FrameBase, tag="keys_withdrawn"):
    """Front end to core, which passes it on to the others: an issuer's keys are to be fetched."""

    issuer: str


class ModelRecord(msgspec.Struct, array_like=True):
    """The properties of a model version that never change."""

    number: int
    spec: bytes  # a `ModelSpec` in MessagePack
    config_json: bytes
    is_bound: bool
    has_ready_check: bool
    takes_columns: bool


class ModelStateRecord(msgspec.Struct, array_like=True):
    """The state of a model version."""

    number: int
    state: str
    is_ready: bool
    reason: str = ""


class Registry(FrameBase, tag="registry"):
    """Core to front end: all models that are not hidden; replaces the earlier registry."""

    epoch: int
    models: list[ModelStateRecord]
    new_models: list[ModelRecord]  # those that the front end does not know yet
    is_exiting: bool  # the server accepts no more requests
    is_serving: bool  # the server is ready
    trace_rates: dict[str, int] = {}  # see `TraceSettings.rates`


class RegistryTaken(FrameBase, tag="registry_taken"):
    """Front end to core: it serves the models of this registry from now on."""

    epoch: int


class RegionRecord(msgspec.Struct, array_like=True, gc=False):
    """A region of shared memory that a client has registered."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegionRecord(msgspec.Struct, array_like=True, gc=False):
    """A region of GPU memory that a client has registered."""

    name: str
    number: int
    handle: bytes
    device: int
    byte_size: int


class RegionUpdate(FrameBase, tag="regions"):
    """Core to front end: regions were registered or unregistered.

    The descriptors of the added ones come with the message.
    """

    number: int  # counts the updates for this front end
    added: list[RegionRecord]
    removed: list[str]
    added_cuda: list[CudaRegionRecord] = []


class RegionsTaken(FrameBase, tag="regions_taken"):
    """Front end to core: it uses the regions of an update from now on."""

    number: int


class TraceRefusal(FrameBase, tag="trace_refusal"):
    """Front end to core: a request was refused before it was sent, which its trace may show."""

    origin: TraceOrigin
    model_name: str
    version: int
    id: str
    received_ns: int
    error: str
    error_code: int


class Refusals(FrameBase, tag="refusals"):
    """Front end to core: requests that it has refused since the last report, in groups."""

    groups: list[FailureGroup]


class SubmitItem(msgspec.Struct, array_like=True):
    """A request that was validated against its model."""

    call: int
    model: int  # its number in the registry
    inputs: list[TensorRef]
    rows: int
    received_ns: int
    fields: RequestFields
    batch_key: Any = None
    outputs: tuple[str, ...] | None = None
    model_version: str = ""  # as the client wrote it
    path: int = 0  # a `RequestPath`
    operation: str = ""
    device: DeviceUse | None = None
    group: tuple[int, int, int] | None = None  # see `RequestGroup`: number, count, size
    trace: TraceOrigin | None = None
    wants_cost: bool = False  # the last reply is to say what it has cost


class SignatureColumn(msgspec.Struct, array_like=True, gc=False):
    """An input of all requests with a signature."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    row_bytes: int


class DefineSignature(FrameBase, tag="signature"):
    """Front end to core: a number for a `runtime.executor.columns.Signature` of a model."""

    number: int
    model: int
    inputs: list[SignatureColumn]
    outputs: tuple[str, ...] | None
    batch_key: Any = None
    forgotten: list[int] = []  # the numbers that no chunk will use again
    is_batched: bool = True


class ColumnRef(msgspec.Struct, array_like=True, gc=False):
    """Where the bytes of one column are: at `offset` of the message's payload or of a block."""

    offset: int
    size: int
    block: int = 0
    sizes: list[int] = []  # of each request, for BYTES


class MemberKind(msgspec.Struct, array_like=True, gc=False):
    """What some members of a chunk have in common."""

    rows: int
    fields: RequestFields


class ChunkItem(msgspec.Struct, array_like=True):
    """Small requests of one signature; each is named by the chunk's call and its index."""

    call: int
    signature: int
    count: int
    received_ns: int  # the mean of all
    columns: list[ColumnRef]
    kinds: list[MemberKind]
    kind_of: list[int] = []  # of each request, its place in `kinds`; empty: there is one
    model_version: str = ""  # as the clients wrote it
    origins: ChunkOrigins | None = None  # of those that may be traced
    wants_cost: bool = False  # replies are to say what each request has cost


class Submit(FrameBase, tag="submit"):
    """Front end to core: requests, and chunks of small requests."""

    items: list[SubmitItem]
    chunks: list[ChunkItem] = []


class RowsItem(msgspec.Struct, array_like=True):
    """The answers to the requests `first` to `end` (without `end`) of a chunk."""

    call: int
    first: int
    end: int
    outputs: list[TensorRef]  # each has the rows of all these requests; `shape` is that of one row
    cost: RequestCost | None = None  # of each of them


class ReplyItem(msgspec.Struct, array_like=True):
    """A response, an error in its place, or an end without tensors."""

    call: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    is_refused: bool = False  # no model has seen the request
    is_outdated: bool = False  # the model was replaced: look it up and submit the request again
    index: int = -1  # of the request in its chunk; -1: it is not in a chunk
    # Not 0: so many responses, none of them the last. The outputs are like those of `ResponseRows`.
    burst: int = 0
    cost: RequestCost | None = None  # of the request, in its last reply
    retry_after_s: int = 0  # when the client may try again after an error; 0: nobody knows


class Replies(FrameBase, tag="replies"):
    """Core to front end: responses to several requests."""

    items: list[ReplyItem]
    rows: list[RowsItem] = []


class Flow(FrameBase, tag="flow"):
    """Front end to core: clients that disconnected, and responses that clients have consumed."""

    cancelled: list[int]
    consumed: dict[int, int]  # number of responses by call
    cancelled_members: list[tuple[int, int]] = []  # of chunks: the call and the index


class CoreQuestion(FrameBase, tag="question"):
    """Front end to core: call a method of the core's `EngineClient`."""

    call: int
    method: str
    arguments: dict[str, Any]


class QuestionReply(FrameBase, tag="question_reply"):
    """Core to front end: the result of a `CoreQuestion`, or an error."""

    call: int
    value: Any = None
    error: str | None = None
    error_code: int = 0


class Connections(FrameBase, tag="connections"):
    """Front end to core: the number of its clients, and how many it was given since its start."""

    http: int
    grpc: int
    opening: int  # those that have no protocol yet, for example during a TLS handshake
    taken: int
    capacity: int  # how many clients its file descriptors suffice for
    left: list[int] = []  # the numbers of clients that have left, if they are limited by address


class Ping(FrameBase, tag="ping"):
    """Core to front end: answer with a `Pong`, so that the core knows that its event loop runs."""

    number: int


class LimitUse(msgspec.Struct, array_like=True, frozen=True):
    """How near one process is to its limits, and how often clients met them."""

    request_memory_bytes: int = 0
    grpc_calls: int = 0  # the open ones of the connection that has the most
    refusals: dict[str, int] = {}  # by limit
    handshake_failures: dict[str, int] = {}  # of TLS, by reason
    unread_bytes: int = 0  # of answers
    most_unread_bytes: int = 0


class Pong(FrameBase, tag="pong"):
    """Front end to core: the answer to a `Ping`."""

    number: int
    use: LimitUse = LimitUse()


class LetClientsLeave(FrameBase, tag="let_clients_leave"):
    """Core to front end: serve on, but ask all clients to use other connections."""


class ReloadCertificates(FrameBase, tag="reload_certificates"):
    """Core to front end: read the files of encrypted ports again."""


class EndConnections(FrameBase, tag="end_connections"):
    """Core to front end: close all connections, each after its client has its responses."""

    timeout_s: float


class ConnectionsEnded(FrameBase, tag="connections_ended"):
    """Front end to core: all connections are closed."""


class LogEntry(FrameBase, tag="log_entry"):
    """Front end to core: a record for the server's log."""

    logger: str
    level: int
    message: str
    path: str
    line: int
    created: float
    process: int
    exception: str | None = None
    request_ids: list[str] = []


class LogEntries(FrameBase, tag="log_entries"):
    """Front end to core: verbose lines about requests, for the server's log."""

    entries: LogLines


FrontEndFrame = (
    Configure
    | PolicyChange
    | AccessRefusals
    | CredentialFailures
    | KeysWithdrawn
    | Registry
    | RegistryTaken
    | RegionUpdate
    | RegionsTaken
    | TraceRefusal
    | Refusals
    | Submit
    | DefineSignature
    | Replies
    | Flow
    | CoreQuestion
    | QuestionReply
    | Connections
    | Ping
    | Pong
    | LetClientsLeave
    | ReloadCertificates
    | EndConnections
    | ConnectionsEnded
    | LogEntries
    | LogEntry
)
