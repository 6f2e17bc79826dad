# SPDX-License-Identifier: Apache-2.0
"""Models with `execute_batch` in a server: many clients, failures, states, large tensors."""

from __future__ import annotations

import concurrent.futures
import textwrap

import numpy as np
import pytest

from tests.e2e.http_client import InferFailedError, infer

SQUARES = {
    "config.pbtxt": """
        max_batch_size: 16
        dynamic_batching { max_queue_delay_microseconds: 2000 }
        input { name: "X" data_type: TYPE_FP32 dims: -1 }
        output [
          { name: "Y" data_type: TYPE_FP32 dims: -1 },
          { name: "ROWS" data_type: TYPE_INT32 dims: 1 }
        ]
    """,
    "1/model.py": """
        import numpy as np
        from pytriton.base.errors import NotFoundError

        class TritonPythonModel:
            def execute_batch(self, batch):
                x = batch.inputs["X"]
                start = 0
                for position, rows in enumerate(batch.rows):
                    if (x[start : start + rows] < 0).any():
                        batch.fail(position, NotFoundError("a negative number"))
                    start += rows
                y = batch.allocate(x.shape, x.dtype)
                np.multiply(x, x, out=y)
                return {"Y": y, "ROWS": np.full((len(x), 1), len(x), np.int32)}
    """,
}
SUMS = {
    "config.pbtxt": """
        max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: 1 }
        output { name: "Y" data_type: TYPE_FP32 dims: 1 }
        sequence_batching { max_sequence_idle_microseconds: 60000000
          oldest { max_candidate_sequences: 4 } state {
          input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: 1
          initial_state { name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true }
        } }
    """,
    "1/model.py": """
        class TritonPythonModel:
            def execute_batch(self, batch):
                assert batch.output_names == ["Y", "NEXT"], batch.output_names
                total = batch.inputs["SUM"] + batch.inputs["X"]
                return {"Y": total, "NEXT": total}
    """,
}


@pytest.fixture(scope="module")
def server(start_module_server):
    models = {
        name: {path: textwrap.dedent(text) for path, text in files.items()}
        for name, files in (("squares", SQUARES), ("sums", SUMS))
    }
    return start_module_server(models).await_ready()


def test_many_clients_get_their_own_rows(server):
    def ask(number):
        x = np.full((1 + number % 3, 2), number, np.float32)
        wanted = {} if number % 2 else {"outputs": [{"name": "Y"}]}
        return infer(server.http_port, "squares", {"X": x}, **wanted)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(200)))

    for number, answer in enumerate(answers):
        assert answer["Y"].tolist() == [[number**2] * 2] * (1 + number % 3)
        assert ("ROWS" in answer) is bool(number % 2)


def test_request_fails_alone(server):
    def ask(number):
        x = np.array([[number]], np.float32)
        try:
            return infer(server.http_port, "squares", {"X": x})["Y"].item()
        except InferFailedError as error:
            return error.status, error.text

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [-1, 2, 3, -1, 4, 5, 6, -1] * 5))

    assert answers == [(404, "a negative number"), 4, 9, (404, "a negative number"), 16, 25, 36,
                       (404, "a negative number")] * 5  # fmt: skip


def test_states_of_sequences_are_kept(server):
    def ask(sequence, value, **flags):
        members = {"parameters": {"sequence_id": sequence, **flags}}
        x = np.array([[value]], np.float32)
        return infer(server.http_port, "sums", {"X": x}, **members)["Y"].item()

    assert ask(1, 5, sequence_start=True) == 5
    assert ask(2, 7, sequence_start=True) == 7
    assert ask(1, 1) == 6
    assert ask(2, 1, sequence_end=True) == 8
    assert ask(1, 2, sequence_end=True) == 8
