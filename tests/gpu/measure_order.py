# SPDX-License-Identifier: Apache-2.0
"""Measures how processes can order their work on a tensor that one has made and the other reads.

The producer either waits for its stream before it sends the message, or sends an event of CUDA's
that the consumer's stream waits for. Prints microseconds from the start of the work to its end in
the consumer, medians of `ROUNDS`. `python -m tests.gpu.measure_order` needs a GPU and torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time

ROUNDS = 300
SIZES = (1 << 16, 1 << 20, 1 << 24)  # elements


def consume(pipe):
    torch = importlib.import_module("torch")
    torch.zeros(1, device="cuda")
    tensors = {}
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        key, handle = message
        if key not in tensors:
            tensors[key] = pipe.recv()
        if handle is not None:
            event = torch.cuda.Event.from_ipc_handle(torch.cuda.current_device(), handle)
            event.wait()
        tensors[key].add(1)
        torch.cuda.synchronize()
        pipe.send("done")


def measure(torch, pipe, tensor, key, *, uses_event):
    times = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        tensor.mul_(1.0001)
        handle = None
        if uses_event:
            event = torch.cuda.Event(enable_timing=False, interprocess=True)
            event.record()
            handle = event.ipc_handle()
        else:
            torch.cuda.current_stream().synchronize()
        pipe.send((key, handle))
        if number == 0 and not uses_event:
            pipe.send(tensor)
        pipe.recv()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def main():
    if importlib.util.find_spec("torch") is None:
        sys.stdout.write("torch is missing: nothing was measured\n")
        return
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        sys.stdout.write("there is no GPU: nothing was measured\n")
        return
    spawn = importlib.import_module("torch.multiprocessing").get_context("spawn")
    ours, theirs = spawn.Pipe()
    consumer = spawn.Process(target=consume, args=(theirs,), daemon=True)
    consumer.start()
    ours.recv()
    for key, size in enumerate(SIZES):
        tensor = torch.ones(size, device="cuda")
        waited = measure(torch, ours, tensor, key, uses_event=False)
        evented = measure(torch, ours, tensor, key, uses_event=True)
        line = f"{size * 4 >> 10:8} KiB: waits {waited:7.0f} us, event {evented:7.0f} us"
        sys.stdout.write(f"{line}\n")
    ours.send(None)
    consumer.join(30)


if __name__ == "__main__":
    main()
