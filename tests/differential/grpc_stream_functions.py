# SPDX-License-Identifier: Apache-2.0
"""What the compared streams answer: each generator yields the outputs of one response at a time.

The repository writer copies this file next to each `model.py`, so it imports nothing of ours.
"""

import numpy as np


def repeat(inputs, parameters):
    """As many numbers as `IN` says, from zero on."""
    for number in range(int(inputs["IN"].ravel()[0])):
        yield {"OUT": np.array([number], np.int32)}


def once(inputs, parameters):
    """`IN` unchanged, in one response."""
    yield {"OUT": inputs["IN"]}


def fail_late(inputs, parameters):
    """As many numbers as `IN` says, and then an error."""
    yield from repeat(inputs, parameters)
    raise ValueError("this stream fails in the end")
