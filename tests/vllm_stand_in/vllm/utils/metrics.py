# SPDX-License-Identifier: Apache-2.0
"""Metrics of the engine, recorded by a thread of their own."""

import queue
import threading

import triton_python_backend_utils as pb_utils

_TIMES_S = [0.001, 0.01, 0.1, 1.0]
_COUNTS = [1, 2, 4, 8]
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": _TIMES_S,
    "vllm:time_per_output_token_seconds": _TIMES_S,
    "vllm:e2e_request_latency_seconds": _TIMES_S,
    "vllm:request_prompt_tokens": _COUNTS,
    "vllm:request_generation_tokens": _COUNTS,
    "vllm:request_params_n": _COUNTS,
}


class StatLogger:
    """Two counters and six histograms."""

    def __init__(self, labels):
        self._prompts = self._counter("vllm:prompt_tokens_total", labels)
        self._tokens = self._counter("vllm:generation_tokens_total", labels)
        self._histograms = {}
        self._families = []
        for name, buckets in _HISTOGRAMS.items():
            family = pb_utils.MetricFamily(
                name=name, description=f"{name} of the engine", kind=pb_utils.MetricFamily.HISTOGRAM
            )
            self._families.append(family)
            self._histograms[name] = family.Metric(labels=labels, buckets=buckets)
        self._queue = queue.Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @staticmethod
    def _counter(name, labels):
        family = pb_utils.MetricFamily(
            name=name, description=f"{name} of the engine", kind=pb_utils.MetricFamily.COUNTER
        )
        return family, family.Metric(labels=labels)

    def record(self, output):
        self._queue.put(("increment", self._tokens[1], 1))
        if output.is_finished:
            self._queue.put(("increment", self._prompts[1], output.input_count))
            prompt = self._histograms["vllm:request_prompt_tokens"]
            generated = self._histograms["vllm:request_generation_tokens"]
            self._queue.put(("observe", prompt, output.input_count))
            self._queue.put(("observe", generated, output.token_count))

    def _run(self):
        while (item := self._queue.get()) is not None:
            action, metric, value = item
            getattr(metric, action)(value)

    def finalize(self):
        self._queue.put(None)
        self._thread.join()
