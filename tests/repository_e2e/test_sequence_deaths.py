# SPDX-License-Identifier: Apache-2.0
"""What clients see of sequences whose instance dies."""

from __future__ import annotations

import queue

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import code, config, model

# Adds the inputs of a sequence up; dies of a negative one, as soon as a file says so.
SUMS = code(
    """
    key = request.correlation_id()
    if request.flags() & 1:
        self.sums[key] = 0.0
    if x[0, 0] < 0:
        open(os.path.join(os.path.dirname(__file__), "reached"), "w").close()
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "die")):
            time.sleep(0.01)
        os._exit(3)
    self.sums[key] += x[0, 0] if key else 0.0
    y = [[self.sums[key]]]
    """,
    initialize="self.sums = {0: 0.0}",
)
IDLE = "max_sequence_idle_microseconds: 600000000"
STRATEGIES = {
    "direct": f"sequence_batching {{ {IDLE} }}\n",
    "oldest": f"sequence_batching {{ {IDLE} oldest {{ max_candidate_sequences: 4 }} }}\n",
}
PENDING = 'nv_inference_pending_request_count{model="%s"'
MISSING_START = "must specify the START flag on the first request of the sequence"


class Client:
    """Sends requests of sequences without waiting for their answers."""

    def __init__(self, client):
        self._client = client
        self.answers: queue.Queue = queue.Queue()

    def send(self, name, sequence, value, *, start=False):
        self._client.async_infer(
            name,
            [self._tensor(value)],
            lambda result, error: self.answers.put((sequence, result, error)),
            sequence_id=sequence,
            sequence_start=start,
        )

    def infer(self, name, sequence, value, *, start=False):
        result = self._client.infer(
            name, [self._tensor(value)], sequence_id=sequence, sequence_start=start
        )
        return float(result.as_numpy("Y")[0, 0])

    def errors(self, count):
        """The errors of so many requests, as pairs of sequence and message."""
        received = [self.answers.get(timeout=DEADLINE_S) for _ in range(count)]
        return sorted((sequence, error.message()) for sequence, _, error in received)

    def _tensor(self, value):
        made = triton_grpc.InferInput("X", [1, 1], "FP32")
        made.set_data_from_numpy(np.array([[value]], np.float32))
        return made


@pytest.fixture
def started(start_server):
    """Starts a server with one model."""

    def start(settings, instances=1):
        group = f"instance_group [{{ kind: KIND_CPU count: {instances} }}]\n"
        files = model(SUMS, config(settings + group, max_batch_size=4))
        return start_server({"sums": files}).await_ready()

    return start


def pending(server):
    lines = call(server.metrics_port, "/metrics").body.decode().splitlines()
    [line] = [each for each in lines if each.startswith(PENDING % "sums")]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_death_of_an_instance_ends_its_sequences_once(started, strategy):
    server = started(STRATEGIES[strategy])
    folder = server.repository / "sums" / "1"
    with server.grpc_client() as opened:
        client = Client(opened)
        client.infer("sums", 1, 1.0, start=True)
        client.infer("sums", 2, 1.0, start=True)
        client.send("sums", 1, -1.0)
        assert eventually((folder / "reached").exists)
        client.send("sums", 1, 2.0)
        client.send("sums", 2, 2.0)
        assert eventually(lambda: pending(server) == 2)
        (folder / "die").touch()
        errors = client.errors(3)
        refused = []
        for sequence in (1, 2):
            with pytest.raises(InferenceServerException, match=MISSING_START) as caught:
                client.infer("sums", sequence, 1.0)
            refused.append(caught.value.status())
        again = [client.infer("sums", 1, value, start=value == 5.0) for value in (5.0, 1.0)]

    assert [sequence for sequence, _ in errors] == [1, 1, 2]
    assert ["sums_0_0" in message for _, message in errors] == [True] * 3
    assert client.answers.empty()
    assert refused == ["StatusCode.INVALID_ARGUMENT"] * 2
    assert again == [5, 6]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_of_other_instances_outlive_a_death(started, strategy):
    server = started(STRATEGIES[strategy], instances=2)
    (server.repository / "sums" / "1" / "die").touch()
    with server.grpc_client() as opened:
        client = Client(opened)
        # Sequences take turns with the instances.
        for sequence in (1, 2, 3, 4):
            client.infer("sums", sequence, 1.0, start=True)
        with pytest.raises(InferenceServerException):
            client.infer("sums", 1, -1.0)
        with pytest.raises(InferenceServerException, match=MISSING_START):
            client.infer("sums", 3, 1.0)
        sums = [client.infer("sums", sequence, 10.0) for sequence in (2, 4)]

    assert sums == [11, 11]
