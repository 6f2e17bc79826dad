# SPDX-License-Identifier: Apache-2.0
import numpy as np
from collector import Collector

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

collector = Collector()


def normalise(requests):
    responses = []
    for request in requests:
        with request.traced_span("centre"):
            values = request["values"] - request["values"].mean()
        with request.traced_span("scale"):
            responses.append({"values": values / np.abs(values).max()})
    return responses


def show_spans(requests):
    """What was received of a trace, so that the client can show it."""
    trace_id, parent_id = requests[0]["span"].item().decode().split("-")
    lines = "\n".join(collector.tree(trace_id, parent_id))
    return [{"tree": np.array([lines.encode()])}]


def bind(triton):
    row = Tensor(name="values", dtype=np.float32, shape=(-1,))
    triton.bind("Normalise", normalise, [row], [row], config=ModelConfig(max_batch_size=16))
    triton.bind(
        "Spans",
        show_spans,
        [Tensor(name="span", dtype=np.object_, shape=(1,))],
        [Tensor(name="tree", dtype=np.object_, shape=(1,))],
        config=ModelConfig(batching=False),
    )


if __name__ == "__main__":
    trace_config = [
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,resource=service.name=tracing-example",
        "opentelemetry,bsp_schedule_delay=100",  # milliseconds until spans are sent
        "rate=0",  # only requests whose clients trace
    ]
    with Triton(config=TritonConfig(trace_config=trace_config)) as triton:
        bind(triton)
        triton.serve()
