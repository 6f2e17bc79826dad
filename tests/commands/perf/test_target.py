# SPDX-License-Identifier: Apache-2.0
"""What is asked of a server before a load test, and the plan that comes of it."""

from __future__ import annotations

import json

import pytest

from pytriton.tools.commands.perf import session as module
from pytriton.tools.commands.perf.arguments import make_parser
from pytriton.tools.commands.perf.options import options_of
from pytriton.tools.commands.perf.session import PerfTarget, find_target, schedule_rate
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import (
    Compression,
    LoadProtocol,
    Sequences,
    TensorFormat,
    TensorMemory,
)
from pytriton.tools.perf.server_state import QuestionError

METADATA = {
    "name": "M",
    "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "b", "datatype": "FP32", "shape": [-1, 2]}],
}


class FakeServer:
    """A server that refuses what it was not given."""

    def __init__(self, config=None, server=None, statistics=None) -> None:
        self._config = config
        self._server = server
        self._statistics = statistics
        self.is_closed = False

    def model_metadata(self, model, version=""):
        return METADATA

    def model_config(self, model, version=""):
        return self._given(self._config)

    def server_metadata(self):
        return self._given(self._server)

    def statistics(self, model, version=""):
        return self._given(self._statistics)

    def close(self):
        self.is_closed = True

    def _given(self, value):
        if value is None:
            raise QuestionError("This API is restricted, expecting header 'triton-access-token'")
        return value


@pytest.fixture
def found(monkeypatch):
    def find(line: str = "", **server) -> PerfTarget:
        fake = FakeServer(
            **{"config": {"max_batch_size": 4}, "server": {"name": "triton", "version": "2"},
               "statistics": [], **server}
        )  # fmt: skip
        monkeypatch.setattr(module, "questions_of", lambda _address: fake)
        options = options_of(make_parser().parse_args(["M", *line.split()]))
        try:
            return find_target(options, options.address, options.model)
        except PerfError:
            assert fake.is_closed
            raise

    return find


def test_server_is_named_and_its_counters_are_read(found):
    target = found(server={"name": "triton", "version": "2", "extensions": ["statistics"]})

    assert target.server == "triton 2"
    assert target.statistics is not None
    assert target.note == ""


@pytest.mark.parametrize(
    "server, note",
    [
        ({"server": {"extensions": ["trace"]}}, "it has no extension for statistics"),
        (
            {"statistics": None, "server": None},
            (
                "This API is restricted, expecting header 'triton-access-token'; give its token "
                "with --token or in TRITON_ACCESS_TOKEN"
            ),
        ),
    ],
)
def test_server_without_counters_says_why(found, server, note):
    target = found(**server)

    assert target.statistics is None
    assert target.note == note


def test_server_without_configurations_is_measured_by_its_metadata(found):
    target = found("--shape a:3,2", config=None)

    assert target.model.max_batch_size == 0
    assert target.plan.inputs[0][0].tensors["a"].shape == (3, 2)


def test_plan_follows_the_options(found):
    plan = found(
        "-i grpc -u h:1 -x 3 -b 2 -H k:v --request-parameter p:1:int --processes 3 "
        "--shared-memory system --output-shared-memory-size 64 --grpc-compression-algorithm gzip "
        "--profile-export-file x"
    ).plan

    assert (plan.url, plan.protocol, plan.model, plan.version) == (
        "h:1",
        LoadProtocol.GRPC,
        "M",
        "3",
    )
    assert plan.inputs[0][0].tensors["a"].shape == (2, 2)
    assert plan.headers == (("k", "v"),)
    assert plan.parameters == {"p": 1}
    assert plan.processes == 3
    assert plan.shared_memory is TensorMemory.SYSTEM
    assert plan.outputs == ["b"]
    assert plan.output_region_bytes == 64
    assert plan.compression is Compression.GZIP
    assert plan.keep_outputs
    assert not plan.streaming


def test_plan_has_the_formats_of_http(found):
    plan = found("--input-tensor-format json --output-tensor-format json").plan

    assert plan.input_format is TensorFormat.JSON
    assert plan.output_format is TensorFormat.JSON


def test_decoupled_models_are_streamed_without_being_asked(found):
    target = found(config={"max_batch_size": 4, "model_transaction_policy": {"decoupled": True}})

    assert target.plan.streaming
    assert target.plan.decoupled
    assert target.is_async


@pytest.mark.parametrize("times, rate", [((0, 50, 100), 20.0), ((5,), 1.0), ((0, 0), 2.0)])
def test_schedule_has_a_mean_rate(times, rate):
    assert schedule_rate(times) == rate


def test_sequences_have_their_settings(found):
    config = {"max_batch_size": 4, "sequence_batching": {}}
    line = "--sequence-length 5 --sequence-length-variation 0 --sequence-id-range 7:9 --seed 3"

    target = found(f"{line} --num-of-sequences 2 --serial-sequences", config=config)

    assert target.plan.sequences == Sequences(2, 5, 0.0, 7, 8, seed=3)
    assert target.is_async
    assert found("", config=config).plan.sequences == Sequences()


def test_sequences_of_given_data_have_its_lengths(found, tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [[{"a": [1, 2]}] * 3, [{"a": [1, 2]}]]}))

    plan = found(f"--input-data {path}", config={"max_batch_size": 4, "sequence_batching": {}}).plan

    assert plan.sequences is not None
    assert plan.sequences.length is None
    assert [len(stream) for stream in plan.inputs] == [3, 1]


@pytest.mark.parametrize(
    "line, config, error",
    [
        ("-b 2", {"max_batch_size": 4, "sequence_batching": {}}, "when using a sequence model"),
        ("-b 2 --shape a:1,2", {}, "as the model does not support batching"),
        ("--request-count 3 -t 4", {"max_batch_size": 4}, "is below the concurrency 4"),
        (
            "--periodic-concurrency-range 1:2 --profile-export-file x",
            {"max_batch_size": 4},
            "needs a decoupled model",
        ),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(found, line, config, error):
    with pytest.raises(PerfError, match=error):
        found(line, config=config)
