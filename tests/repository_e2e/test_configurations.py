# SPDX-License-Identifier: Apache-2.0
"""What configurations ask for: labels, optional inputs, caching, warm-up, parameters, batching."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.http as triton_http

from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, config, model

LABELLED = config().replace(
    'output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]',
    'output [{ name: "Y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }]',
)
# Counts executions, which are answered.
COUNTER = "self.count = getattr(self, 'count', 0) + 1; y = x * 0 + self.count"
# Keeps what the warm-up sent: answers the sum, the mean and how many executions there were.
MEMORY = code(
    """
    if x[0, 0] == -1:
        y = np.array([[self.seen[-1].sum(), self.seen[-1].mean(), len(self.seen)]])
    else:
        self.seen.append(x.copy())
        y = x
    """,
    initialize="self.seen = []",
)
AUTO_COMPLETED = code(
    "y = x + 1",
    methods="""
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(16)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config
    """,
)


def warmup(source, extra=""):
    return config(
        f"""model_warmup [{{
            name: "sample" batch_size: 1 {extra}
            inputs {{ key: "X" value {{ data_type: TYPE_FP32 dims: [ 4 ] {source} }} }}
        }}]"""
    )


@pytest.fixture(scope="module")
def server(start_module_server):
    first_call = code(
        "y = x", initialize="pb_utils.Logger.log_info('parameters: ' + args['model_config'])"
    )
    repository = {
        "labelled": model(settings=LABELLED, **{"labels.txt": "cat\ndog\nbird\n"}),
        "cached": model(code(COUNTER), config("response_cache { enable: true }")),
        "uncached": model(code(COUNTER)),
        "random": model(MEMORY, warmup("random_data: true", "count: 3")),
        "cold": model(
            code("if not x.any(): raise ValueError('zeros are refused')\ny = x"),
            warmup("zero_data: true"),
        ),
        "parameters": model(
            first_call, config('parameters { key: "colour" value { string_value: "blue" } }')
        ),
        "bare": {"1/model.py": AUTO_COMPLETED},
    }
    flags = ["--exit-on-error=false", "--cache-config=local,size=1048576"]
    return start_module_server(repository, flags=flags).await_ports()


def test_labels_name_the_classes(server):
    tensor = triton_http.InferInput("X", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.array([[0.1, 0.7, 0.2]], np.float32))
    wanted = triton_http.InferRequestedOutput("Y", class_count=2)
    with server.http_client() as client:
        classes = client.infer("labelled", [tensor], outputs=[wanted]).as_numpy("Y")

    assert classes.tolist() == [[b"0.700000:1:dog", b"0.200000:2:bird"]]


def test_response_is_kept_where_the_configuration_allows_it(server):
    assert [server.infer("cached", 7.0) for _ in range(3)] == [[1.0], [1.0], [1.0]]
    assert [server.infer("uncached", 7.0) for _ in range(3)] == [[1.0], [2.0], [3.0]]
    stats = server.get("/v2/models/cached/stats").json["model_stats"][0]["inference_stats"]
    assert stats["cache_hit"]["count"] == 2
    assert stats["cache_miss"]["count"] == 1


def test_warmup_with_random_numbers_runs_as_often_as_asked(server):
    _, mean, count = server.infer("random", -1.0)

    assert count == 3.0
    assert 0.0 < mean < 1.0


def test_warmup_does_not_count_as_requests(server):
    stats = server.get("/v2/models/cold/stats")

    assert stats.status == 400  # it was never served
    assert server.get("/v2/models/random/stats").json["model_stats"][0]["inference_count"] <= 1


def test_failing_warmup_fails_the_load(server):
    row = server.index()["cold"]

    assert row["state"] == "UNAVAILABLE"
    assert "failed to run warmup sample 'sample'" in row["reason"]
    assert "ValueError: zeros are refused" in row["reason"]


def test_parameters_reach_the_model_and_clients(server):
    parameters = server.get("/v2/models/parameters/config").json["parameters"]

    assert parameters == {"colour": {"string_value": "blue"}}
    assert eventually(lambda: '\\"colour\\"' in server.stdout)


def test_model_completes_its_configuration(server):
    assert server.infer("bare", 1.0) == [2.0]
    settings = server.get("/v2/models/bare/config").json
    assert (settings["backend"], settings["max_batch_size"]) == ("python", 16)
    metadata = server.get("/v2/models/bare").json
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, -1]}]
