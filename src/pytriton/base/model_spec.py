# SPDX-License-Identifier: Apache-2.0
"""The properties of a model that the hot path needs, read once from its ModelConfig message."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from math import prod

import msgspec
from msgspec.structs import force_setattr

from pytriton.base.documentation import Documentation
from pytriton.base.dtypes import DataType
from pytriton.base.messages import ParameterValue
from pytriton.base.openai_routes import ChatTemplate


class Reshape(msgspec.Struct, frozen=True):
    """A conversion of shapes; both sides are without the batch dimension, and -1 is variable.

    The variable dimensions keep their order.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]

    def convert(self, shape: tuple[int, ...], *, batching: bool) -> tuple[int, ...] | None:
        """Returns the new shape, or None if it would have another number of elements."""
        first = 1 if batching else 0
        if len(shape) < first:
            return None
        converted = [*shape[:first]]
        # A model may return another number of dimensions than it says.
        sizes = zip(shape[first:], self.source, strict=False)
        variable = iter([size for size, dim in sizes if dim == -1])
        converted += [next(variable, -1) if dim == -1 else dim for dim in self.target]
        return tuple(converted) if prod(converted) == prod(shape) else None


class ModelTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output as configured."""

    name: str
    dtype: DataType
    dims: tuple[int, ...]  # without the batch dimension; -1 is variable
    shape: tuple[int, ...]  # as metadata shows it: with a leading -1 if the model batches
    optional: bool = False
    has_variable_dims: bool = False
    label_filename: str = ""
    # Of an input to the shape that the model gets, of an output from the one that it returns.
    reshape: Reshape | None = None
    is_ragged: bool = False  # requests with different shapes of this input may share a batch


def reshapes(tensors: Mapping[str, ModelTensor]) -> dict[str, Reshape]:
    """Returns the reshapes of those tensors that have one, by name."""
    return {name: each.reshape for name, each in tensors.items() if each.reshape is not None}


class QueueTimeoutAction(enum.IntEnum):
    """What happens to a request that waited longer than its queue allows."""

    REJECT = 0
    DELAY = 1


class QueuePolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """The queue policy of one priority level."""

    timeout_action: QueueTimeoutAction = QueueTimeoutAction.REJECT
    default_timeout_us: int = 0  # 0: none
    allow_timeout_override: bool = False
    max_queue_size: int = 0  # 0: unlimited


class BatcherSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The dynamic batcher's settings."""

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0  # 0: one level
    default_priority_level: int = 0
    default_queue_policy: QueuePolicySpec = QueuePolicySpec()
    queue_policies: dict[int, QueuePolicySpec] = {}  # by level, if not the default


class SequenceControlKind(enum.IntEnum):
    """What a control input tells a sequence model; the numbers are Triton's."""

    START = 0
    READY = 1
    END = 2
    CORRID = 3


class ControlSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A control input: the server fills it in, clients do not see it."""

    name: str
    kind: SequenceControlKind
    dtype: DataType  # INT32, FP32 or BOOL; that of the correlation id for CORRID
    false_true: tuple[float, float] = (0, 1)  # the values of a flag; unused for CORRID


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An implicit state: what a request leaves in an output is an input of the sequence's next."""

    input_name: str
    output_name: str
    dtype: DataType
    dims: tuple[int, ...]  # without the batch dimension; -1 is variable
    initial: bytes | None = None  # the first request's state in the protocol's layout; None: zeros
    initial_dims: tuple[int, ...] = ()  # the dims of `initial`, or of the zeros if it is None


class SequenceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The sequence batcher's settings."""

    idle_us: int = 1_000_000  # after this time without a request, a sequence ends
    controls: tuple[ControlSpec, ...] = ()
    states: tuple[StateSpec, ...] = ()
    # Oldest strategy: at most so many sequences are batched at a time; None: direct strategy.
    max_candidates: int | None = None
    preferred_batch_sizes: tuple[int, ...] = ()  # oldest
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False  # oldest
    minimum_slot_utilization: float = 0.0  # direct
    max_queue_size: int = 0  # of the sequences that wait for a slot; 0: unlimited
    generates_ids: bool = False  # a request without a correlation id starts a new sequence


class OpenAISpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which of OpenAI's routes serve a model, and the names of the tensors that these need."""

    chat: bool = False
    completions: bool = False
    embeddings: bool = False
    template: ChatTemplate = ChatTemplate()  # makes a prompt of messages
    messages: str = ""  # the input for messages as JSON; empty: it has none, as all below
    prompt: str = ""  # the input for a text
    text: str = ""  # the output with the text of an answer, or a part of it
    embedding: str = ""  # the output with an embedding


def sequence_parameters(correlation_id: int | str, flags: int) -> dict[str, ParameterValue]:
    """Returns the parameters with which the answers of ensembles repeat the sequence."""
    return {
        "sequence_id": correlation_id,
        "sequence_start": bool(flags & 1),
        "sequence_end": bool(flags & 2),
    }


def identifier_of(namespace: str, name: str) -> str:
    """Returns how a model is told from those of the same name in other namespaces, as Triton does.

    Args:
        namespace: Empty for models without one.
        name: Its name.
    """
    return f"{namespace}::{name}" if namespace else name


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model version as the engine serves it."""

    name: str
    version: int
    platform: str  # as metadata shows it: the backend if no platform is set
    max_batch_size: int  # 0: the model does not batch
    inputs: dict[str, ModelTensor]
    outputs: dict[str, ModelTensor]
    required_inputs: frozenset[str]
    batcher: BatcherSpec | None  # None: each request is executed on its own
    decoupled: bool = False
    response_cache: bool = False
    iterative: bool = False  # the model may ask for another execution of a request
    sequence: SequenceSpec | None = None  # set if requests belong to sequences
    labels: dict[str, tuple[str, ...]] = {}  # names of classes, by output
    metric_tags: dict[str, str] = {}  # labels of its metrics, whose names get a `_` in front
    histogram_buckets: dict[str, tuple[float, ...]] = {}  # chosen ones, by metric family
    openai: OpenAISpec | None = None  # None: OpenAI's routes do not serve it
    takes_parameters: bool = True  # False: its function gets the inputs of a request only
    gpu: int | None = None  # the device of all its instances, if that is one GPU
    namespace: str = ""  # its repository, if models of several repositories may have one name
    is_idempotent: bool = False  # requests may run again if their instance is lost unanswered
    no_instance_timeout_s: float = 0.0  # how long requests wait without any instance; 0: no limit
    documentation: Documentation = Documentation()  # what its author says of it
    nullable: tuple[str, ...] = ()  # inputs that JSON's null leaves out, as their type has None
    identifier: str = ""  # how the engine tells it from all others; made of the two names

    def __post_init__(self) -> None:
        """Set the identifier once, as requests read it."""
        force_setattr(self, "identifier", identifier_of(self.namespace, self.name))

    @property
    def is_annotated(self) -> bool:
        """Whether it is a function with annotations, whose users know no datatypes."""
        return not self.takes_parameters

    @property
    def answer_parameters(self) -> dict[str, ParameterValue] | None:
        """The parameters of each answer to a request without a sequence; None: there are none.

        Ensembles repeat the sequence of their request, and do so, too, if it has none.
        """
        return sequence_parameters(0, 0) if self.platform == "ensemble" else None

    @property
    def is_ordered(self) -> bool:
        """Whether answers come in the order of requests."""
        batcher = self.batcher
        # The responses of a decoupled model may come in any order anyway.
        return batcher is not None and batcher.preserve_ordering and not self.decoupled

    @property
    def fits_columns(self) -> bool:
        """Whether its requests may travel as columns (`pytriton.runtime.executor.columns`)."""
        if self.decoupled or self.iterative:
            return False
        sequence = self.sequence
        if sequence is not None and (sequence.states or sequence.generates_ids):
            return False  # these are in the answer to each request
        # A batch of chunks has one shape for each input.
        return not any(tensor.is_ragged for tensor in self.inputs.values())
