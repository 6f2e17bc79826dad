# SPDX-License-Identifier: Apache-2.0
"""Bursts of responses for tests."""

from __future__ import annotations

import random

from pytriton.base import dtypes
from pytriton.base.dtypes import encode_bytes
from pytriton.base.messages import OutputBurst, ResponseBurst


def numbers_burst(numbers, *, name="m", request_id="", output="y"):
    """A response for each of some numbers up to 255."""
    values = OutputBurst(output, dtypes.UINT8, (1,), bytes(numbers), [])
    return ResponseBurst(name, "1", request_id, len(values.data), [values])


def texts_burst(texts, *, name="m", request_id="", output="text"):
    """A response for each text."""
    parts = [encode_bytes([text.encode()]) for text in texts]
    values = OutputBurst(output, dtypes.BYTES, (1,), b"".join(parts), list(map(len, parts)))
    return ResponseBurst(name, "1", request_id, len(parts), [values])


def random_burst(seed):
    """Any number of responses with any outputs."""
    source = random.Random(seed)
    count = source.randint(1, 70)
    outputs = []
    for number in range(source.randint(0, 4)):
        size = source.choice([0, 1, 4, 127, 128, 300])
        if source.random() < 0.5:
            data = source.randbytes(count * size)
            outputs.append(OutputBurst(f"y{number}", dtypes.UINT8, (size,), data, []))
        else:
            texts = [source.randbytes(source.choice([0, 3, 200])) for _ in range(count)]
            parts = [encode_bytes([text]) for text in texts]
            sizes = list(map(len, parts))
            outputs.append(OutputBurst(f"y{number}", dtypes.BYTES, (1,), b"".join(parts), sizes))
    request_id = source.choice(["", "an id", "x" * 200])
    return ResponseBurst("model", "3", request_id, count, outputs)
