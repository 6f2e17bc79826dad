# SPDX-License-Identifier: Apache-2.0
"""The documents, as JSON; the texts were recorded from Triton, only its version differs."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from pytriton.base.model_spec import ModelSpec
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.stats import (
    BatchRecord,
    FailureReason,
    ModelStatistics,
    ResponseOutcome,
)
from pytriton.serving.server.api.documents import (
    TRITON_VERSION,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
    statistics_of,
)


@dataclass
class FakeModel:
    spec: ModelSpec
    statistics: ModelStatistics = field(default_factory=ModelStatistics)


def model(name: str, version: int = 1, more: str = "") -> FakeModel:
    config = config_from_text(
        f"""name: "{name}" backend: "python" {more}
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
        output [ {{ name: "y" data_type: TYPE_STRING dims: [ 2, 3 ] }} ]""",
        "config.pbtxt",
    )
    return FakeModel(spec_from_config(normalise_config(config), version))


def test_server_metadata_is_tritons_with_the_extensions_of_this_server():
    expected = (
        f'{{"name":"triton","version":"{TRITON_VERSION}","extensions":["classification",'
        '"sequence","model_repository","model_repository(unload_dependents)","schedule_policy","model_configuration","system_shared_memory","cuda_shared_memory","binary_tensor_data","parameters","statistics","trace","logging"]}'
    )

    assert orjson.dumps(server_metadata("triton")).decode() == expected


def test_server_metadata_lists_the_extensions_that_are_served():
    document = server_metadata("me", ["statistics"])

    assert document == {"name": "me", "version": TRITON_VERSION, "extensions": ["statistics"]}


def test_model_metadata_of_a_model_that_does_not_batch_is_tritons():
    assert orjson.dumps(model_metadata(model("plain").spec, [1])).decode() == (
        '{"name":"plain","versions":["1"],"platform":"python",'
        '"inputs":[{"name":"x","datatype":"FP32","shape":[-1]}],'
        '"outputs":[{"name":"y","datatype":"BYTES","shape":[2,3]}]}'
    )


def test_model_metadata_shows_the_batch_dimension_and_all_ready_versions():
    document = model_metadata(model("m", more="max_batch_size: 8").spec, [1, 2])

    assert document["versions"] == ["1", "2"]
    assert document["inputs"][0]["shape"] == [-1, -1]
    assert document["outputs"][0]["shape"] == [-1, 2, 3]


def test_statistics_of_an_idle_model_are_tritons():
    zero = '{"count":0,"ns":0}'
    expected = (
        '{"model_stats":[{"name":"decoupled","version":"1","last_inference":0,'
        '"inference_count":0,"execution_count":0,"inference_stats":{'
        f'"success":{zero},"fail":{zero},"queue":{zero},"compute_input":{zero},'
        f'"compute_infer":{zero},"compute_output":{zero},"cache_hit":{zero},"cache_miss":{zero}'
        '},"response_stats":{},"batch_stats":[],"memory_usage":[]}]}'
    )

    document = model_statistics([statistics_of(model("decoupled"))])
    assert orjson.dumps(document).decode() == expected


def record(rows: int, compute: tuple[int, int, int], succeeded_ns: int = 0, queue_ns: int = 0):
    compute_input, compute_infer, compute_output = compute
    return BatchRecord(
        rows=rows,
        input_start_ns=10,
        infer_start_ns=10 + compute_input,
        output_start_ns=10 + compute_input + compute_infer,
        end_ns=10 + compute_input + compute_infer + compute_output,
        succeeded=1,
        succeeded_rows=rows,
        succeeded_ns=succeeded_ns,
        queue_ns=queue_ns,
    )


def test_statistics_of_a_busy_model_are_tritons():
    busy = model("batched")
    batches = [
        record(1, (114355, 66603782, 375311), succeeded_ns=68243636, queue_ns=663295),
        record(1, (0, 0, 0)),
        record(1, (0, 0, 0)),
        record(3, (36234, 285924, 149128)),
    ]
    for batch in batches:
        busy.statistics.record_batch(batch, now_ms=1794710553627)

    assert orjson.dumps(model_statistics([statistics_of(busy)])).decode() == (
        '{"model_stats":[{"name":"batched","version":"1","last_inference":1794710553627,'
        '"inference_count":6,"execution_count":4,"inference_stats":{'
        '"success":{"count":4,"ns":68243636},"fail":{"count":0,"ns":0},'
        '"queue":{"count":4,"ns":663295},"compute_input":{"count":4,"ns":150589},'
        '"compute_infer":{"count":4,"ns":66889706},"compute_output":{"count":4,"ns":524439},'
        '"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"response_stats":{},'
        '"batch_stats":[{"batch_size":1,"compute_input":{"count":3,"ns":114355},'
        '"compute_infer":{"count":3,"ns":66603782},"compute_output":{"count":3,"ns":375311}},'
        '{"batch_size":3,"compute_input":{"count":1,"ns":36234},'
        '"compute_infer":{"count":1,"ns":285924},"compute_output":{"count":1,"ns":149128}}],'
        '"memory_usage":[]}]}'
    )


def test_statistics_name_failures_and_responses():
    stream = model("stream", version=3)
    stream.statistics.record_failures(2, 50, FailureReason.BACKEND)
    stream.statistics.record_response(0, ResponseOutcome.SUCCESS, 7, 3)
    stream.statistics.record_response(1, ResponseOutcome.EMPTY, 4)

    (document,) = model_statistics([statistics_of(stream)])["model_stats"]

    assert document["version"] == "3"
    assert document["inference_stats"]["fail"] == {"count": 2, "ns": 50}
    assert document["response_stats"]["0"] == {
        "compute_infer": {"count": 1, "ns": 7},
        "compute_output": {"count": 1, "ns": 3},
        "success": {"count": 1, "ns": 10},
        "fail": {"count": 0, "ns": 0},
        "empty_response": {"count": 0, "ns": 0},
        "cancel": {"count": 0, "ns": 0},
    }
    assert document["response_stats"]["1"]["empty_response"] == {"count": 1, "ns": 4}


def test_statistics_list_models_in_the_order_given():
    models = [model("b"), model("a"), model("a", version=2)]
    documents = model_statistics(map(statistics_of, models))

    assert [(entry["name"], entry["version"]) for entry in documents["model_stats"]] == [
        ("b", "1"),
        ("a", "1"),
        ("a", "2"),
    ]
    assert model_statistics([]) == {"model_stats": []}


def test_repository_index_leaves_out_what_is_not_known():
    entries = [
        IndexEntry("new"),
        IndexEntry("m", "1", "READY"),
        IndexEntry("m", "2", "UNAVAILABLE", "unloaded"),
    ]

    assert repository_index(entries).decode() == (
        '[{"name":"new"},{"name":"m","version":"1","state":"READY"},'
        '{"name":"m","version":"2","state":"UNAVAILABLE","reason":"unloaded"}]'
    )
    assert repository_index([]) == b"[]"
