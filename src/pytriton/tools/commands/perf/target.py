# SPDX-License-Identifier: Apache-2.0
"""A server with the model that is measured: what it says of itself, and what is sent to it."""

from __future__ import annotations

import dataclasses

from pytriton.base.security import TOKEN_VARIABLE, TRITON_ACCESS_HEADER
from pytriton.tools.commands.perf.options import PerfOptions
from pytriton.tools.perf.data.inputs import read_inputs
from pytriton.tools.perf.data.settings import InputData
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import (
    Compression,
    LoadPlan,
    LoadProtocol,
    Sequences,
    TensorFormat,
    TensorMemory,
)
from pytriton.tools.perf.measuring.results import Mode
from pytriton.tools.perf.model_description import MeasuredModel, describe
from pytriton.tools.perf.server.asking import questions_of
from pytriton.tools.perf.server.questions import QuestionError, Questions, ServerAddress
from pytriton.tools.perf.server.statistics import StatisticsReader

_BASE_LENGTH = 20  # of sequences, if nobody says otherwise


@dataclasses.dataclass(frozen=True, slots=True)
class PerfTarget:
    """A server with the model that is measured.

    Attributes:
        server: Its name and version.
        statistics: Its counters; None if it has none.
        is_async: Whether calls are asynchronous, which only the report shows.
        note: Why the server gives no counters; empty if it does.
    """

    address: ServerAddress
    questions: Questions
    server: str
    model: MeasuredModel
    statistics: StatisticsReader | None
    inputs: InputData
    plan: LoadPlan
    is_async: bool
    note: str = ""


def find_target(options: PerfOptions, address: ServerAddress, model: str) -> PerfTarget:
    """Ask a server about the model, and plan what is sent.

    Raises:
        PerfError: It cannot be asked, or the options do not fit the model.
    """
    questions = questions_of(address)
    try:
        return _target(options, address, model, questions)
    except BaseException:
        questions.close()
        raise


def _target(
    options: PerfOptions, address: ServerAddress, model: str, questions: Questions
) -> PerfTarget:
    try:
        metadata = questions.model_metadata(model, options.version)
    except QuestionError as error:
        raise PerfError(f"failed to get model metadata: {error}") from error
    try:
        config = questions.model_config(model, options.version)
    except QuestionError:
        config = {}  # a server without Triton's extension
    description = describe(metadata, config, options.version)
    description = dataclasses.replace(
        description, composing=(*description.composing, *options.composing)
    )
    _check(options, description)
    inputs = read_inputs(description, options.data)
    _check_schedule(options, inputs)
    server, statistics, note = _server(questions, options, description)
    is_streaming = options.given.streaming or description.is_decoupled
    is_async = options.given.is_async or (
        not options.given.sync and (is_streaming or description.has_sequences)
    )
    return PerfTarget(
        address=address,
        questions=questions,
        server=server,
        model=description,
        statistics=statistics,
        inputs=inputs,
        plan=_plan(options, address, description, inputs),
        is_async=is_async,
        note=note,
    )


def _check(options: PerfOptions, model: MeasuredModel) -> None:
    batch = options.data.batch_size
    if batch > 1 and model.max_batch_size == 0:
        raise PerfError("can not specify batch size > 1 as the model does not support batching")
    if batch > max(model.max_batch_size, 1):
        raise PerfError(
            f"-b {batch} is above the max_batch_size of {model.name}, {model.max_batch_size}"
        )
    if batch > 1 and model.has_sequences:
        raise PerfError("can not specify batch size > 1 when using a sequence model")
    if model.is_decoupled and options.given.sync:
        raise PerfError("Decoupled models are measured with streams of responses: leave out --sync")
    if options.load.mode is Mode.PERIODIC and not model.is_decoupled:
        raise PerfError("--periodic-concurrency-range needs a decoupled model")
    if options.measurement.request_count:
        least = int(options.load.loads.start)
        if options.load.mode is Mode.CONCURRENCY and options.measurement.request_count < least:
            raise PerfError(
                f"--request-count {options.measurement.request_count} is below the concurrency "
                f"{least}"
            )


def _check_schedule(options: PerfOptions, inputs: InputData) -> None:
    if options.load.mode is Mode.SCHEDULE and not inputs.timestamps_ms:
        raise PerfError(
            "--fixed-schedule needs --input-data with a timestamp in each entry, in milliseconds"
        )


def _server(
    questions: Questions, options: PerfOptions, model: MeasuredModel
) -> tuple[str, StatisticsReader | None, str]:
    """The server's name, and its counters, or why it has none to give."""
    try:
        metadata = questions.server_metadata()
    except QuestionError:
        metadata = {}
    name = f"{metadata.get('name', 'server')} {metadata.get('version', '')}".strip()
    if metadata and "statistics" not in (metadata.get("extensions") or ()):
        return name, None, "it has no extension for statistics"
    reader = StatisticsReader(questions, model.name, options.version, model.composing)
    try:
        reader.ask()
    except QuestionError as error:
        hint = f"; give its token with --token or in {TOKEN_VARIABLE}"
        return name, None, f"{error}{hint if TRITON_ACCESS_HEADER in str(error) else ''}"
    return name, reader, ""


def _plan(
    options: PerfOptions, address: ServerAddress, model: MeasuredModel, inputs: InputData
) -> LoadPlan:
    given = options.given
    memory = TensorMemory(given.shared_memory)
    return LoadPlan(
        url=address.url,
        protocol=LoadProtocol.GRPC if address.is_grpc else LoadProtocol.HTTP,
        model=model.name,
        inputs=inputs.streams,
        # Each output has a region of its own in shared memory, so that their names are needed.
        outputs=[each.name for each in model.outputs] if memory is TensorMemory.SYSTEM else (),
        version=options.version,
        streaming=given.streaming or model.is_decoupled,
        decoupled=model.is_decoupled,
        input_format=TensorFormat(given.input_tensor_format),
        output_format=TensorFormat(given.output_tensor_format),
        headers=address.headers,
        parameters=options.parameters,
        sequences=_sequences(options, inputs) if model.has_sequences else None,
        shared_memory=memory,
        output_region_bytes=given.output_shared_memory_size,
        compression=Compression(given.grpc_compression_algorithm),
        tls=address.tls,
        processes=given.processes,
        keep_outputs=bool(given.profile_export_file),
    )


def _sequences(options: PerfOptions, inputs: InputData) -> Sequences:
    given = options.given
    length: int | None = given.sequence_length
    variation = given.sequence_length_variation
    if length is None and not inputs.is_given:
        length = _BASE_LENGTH
    first, last = options.sequence_ids
    return Sequences(
        at_once=given.num_of_sequences,
        length=length,
        length_variation=variation if length is not None else 0.0,
        first_id=first,
        last_id=last,
        seed=given.seed,
    )
