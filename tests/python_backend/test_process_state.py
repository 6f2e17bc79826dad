# SPDX-License-Identifier: Apache-2.0
"""What a model finds in its process: arguments as in Triton, and memory that it cannot shrink."""

from __future__ import annotations

import sys

import numpy as np
import pytest

X = np.array([[1.0]], np.float32)
LARGE = np.ones((1, 1 << 18), np.float32)


def test_arguments_are_those_of_triton(worker):
    rig = worker(
        """
import argparse

class TritonPythonModel:
    def initialize(self, args):
        argparse.ArgumentParser().parse_args()

    def execute(self, requests):
        output = pb_utils.Tensor("y", np.array([[repr(sys.argv)]], np.object_))
        return [pb_utils.InferenceResponse([output])]
"""
    )
    (outputs,) = rig.run({"x": X})

    assert outputs["y"].tolist() == [[b"['']"]]


SHRINKING_MODEL = """
sent = []  # by the server
close = os.close

def keep(descriptor):
    try:
        if "memfd:" in os.readlink(f"/proc/self/fd/{descriptor}"):
            sent.append(os.dup(descriptor))
    except OSError:
        pass
    close(descriptor)

os.close = keep

def shrink(descriptor):
    try:
        os.ftruncate(descriptor, 0)
    except PermissionError:
        return "refused"
    return "shrunk"

class TritonPythonModel:
    def execute(self, requests):
        made = [int(name) for name in os.listdir("/proc/self/fd")]
        made = [each for each in made if each not in sent]
        made = [each for each in made if is_memory(each)]
        words = [shrink(each) for each in sent] + [shrink(each) for each in made]
        rows = [np.array([[len(sent), len(made), words.count("shrunk")]], np.float32)]
        rows.append(np.full((1, 1 << 18), 2, np.float32))
        tensors = [pb_utils.Tensor(name, row) for name, row in zip("yz", rows)]
        return [pb_utils.InferenceResponse(tensors)]

def is_memory(descriptor):
    try:
        return "memfd:pytriton" in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has seals")
def test_model_cannot_shrink_memory_of_either_side(worker):
    rig = worker(SHRINKING_MODEL, output_names=["y", "z"])
    for count in (0, 1):
        (outputs,) = rig.run({"x": LARGE})
        assert outputs["z"].max() == 2
        sent, made, shrunk = outputs["y"][0]
        assert sent == 1
        assert made > count  # a mapping holds a descriptor, too
        assert shrunk == 0
