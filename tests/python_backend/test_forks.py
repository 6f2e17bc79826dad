# SPDX-License-Identifier: Apache-2.0
"""Processes that a model forks: they call other models over the fork socket of its worker."""

from __future__ import annotations

import select

import numpy as np

from pytriton.runtime.transport.frames import InferCallFrame, WorkerLogLine
from tests.e2e.waiting import eventually
from tests.python_backend.worker_rig import DEADLINE_S, connect_forked, is_alive

X = np.array([[1.0]], np.float32)


def model(body):
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
import multiprocessing
fork = multiprocessing.get_context("fork")

def ask(number):
    request = pb_utils.InferenceRequest(
        request_id=str(number), model_name="other", requested_output_names=["y"],
        inputs=[pb_utils.Tensor("x", np.full((1, 1), number, np.float32))],
    )
    answer = request.exec()
    if answer.has_error():
        raise RuntimeError(answer.error().message())
    return answer.output_tensors()[0].as_numpy().item()

class TritonPythonModel:
    def execute(self, requests):
{lines}
"""


def test_pool_inside_execute_calls_other_models(worker):
    rig = worker(
        model(
            """
with fork.Pool(3) as pool:
    values = pool.map(ask, range(6), chunksize=2)
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([values]))])]
"""
        )
    )
    batch = rig.execute({"x": X})
    peers = []
    # A process may take more than one share of the work.
    for _ in range(6):
        peer, call = next_call(rig, peers)
        assert (call.model_name, call.blocked_batch) == ("other", 0)
        peer.reply(call.call, {"y": np.array([[float(call.id) * 10]])})
    (outputs,) = rig.answers(batch, 1)
    assert outputs["y"].tolist() == [[0, 10, 20, 30, 40, 50]]
    for peer in peers:
        peer.close()


def next_call(rig, peers):
    """The next call of a forked process, which may be one that had no channel so far."""
    ready, _, _ = select.select([rig.fork_socket, *[p.channel for p in peers]], [], [], DEADLINE_S)
    assert ready
    if rig.fork_socket in ready:
        peers.append(connect_forked(rig.fork_socket))
        return peers[-1], peers[-1].hear(InferCallFrame).frame
    for peer in peers:
        if peer.channel in ready:
            try:
                return peer, peer.hear(InferCallFrame).frame
            except EOFError:
                peers.remove(peer)
                peer.close()
                return next_call(rig, peers)
    raise AssertionError(ready)


def test_worker_calls_on_while_its_children_do(worker):
    rig = worker(
        model(
            """
child = fork.Process(target=ask, args=(5,))
child.start()
value = ask(7)
child.join()
assert child.exitcode == 0
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[value]]))])]
"""
        )
    )
    batch = rig.execute({"x": X})
    own = rig.hear(InferCallFrame).frame
    assert (own.id, own.blocked_batch) == ("7", batch)
    peer = connect_forked(rig.fork_socket)
    call = peer.hear(InferCallFrame).frame
    assert call.id == "5"
    peer.reply(call.call, {"y": X})
    rig.reply(own.call, {"y": X * 70})
    (outputs,) = rig.answers(batch, 1)
    assert outputs["y"].tolist() == [[70]]
    peer.close()


def test_child_logs_through_the_door(worker):
    rig = worker(
        model(
            """
child = fork.Process(target=pb_utils.Logger.log_info, args=("from a child",))
child.start()
child.join()
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    rig.run({"x": X})
    peer = connect_forked(rig.fork_socket)
    assert peer.hear(WorkerLogLine).frame.message == "from a child"
    peer.close()


def test_child_cannot_answer_requests(worker):
    rig = worker(
        model(
            """
reader, writer = fork.Pipe(duplex=False)

def answer():
    assert not requests[0].is_cancelled()
    try:
        requests[0].get_response_sender().send(pb_utils.InferenceResponse([]), 1)
    except pb_utils.TritonModelException as error:
        writer.send(str(error))

child = fork.Process(target=answer)
child.start()
text = reader.recv()
child.join()
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[text]], object))])]
"""
        )
    )
    (outputs,) = rig.run({"x": X})
    assert b"not by one it forked" in outputs["y"].item()


def test_children_of_a_killed_worker_are_killed(start_worker, zygote):
    rig = start_worker(
        model(
            """
pids = []
for _ in range(2):
    pid = os.fork()
    if not pid:
        while True:
            time.sleep(60)
    pids.append(pid)
text = " ".join(map(str, pids))
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[text]], object))])]
"""
        )
    ).start()
    (outputs,) = rig.run({"x": X})
    pids = [int(text) for text in outputs["y"].item().split()]
    assert all(map(is_alive, pids))

    rig.close()
    rig.is_over = True
    assert eventually(lambda: not any(map(is_alive, pids)))


def test_pool_of_a_model_ends_by_terminate(worker):
    rig = worker(
        model(
            """
def sleep():
    while True:
        time.sleep(60)

child = fork.Process(target=sleep)
child.start()
child.terminate()
child.join()
assert child.exitcode == -15
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X})
    assert rig.answers(batch, 1) == [{}]
