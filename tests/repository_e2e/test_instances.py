# SPDX-License-Identifier: Apache-2.0
"""Instances: how many there are, what each is told, and whether they are made side by side."""

from __future__ import annotations

import json

import pytest

from tests.repository_e2e.model_files import code, config, model

FOUR = "instance_group [{ kind: KIND_CPU count: 4 }]"
ONE_BY_ONE = FOUR + 'parameters { key: "PARALLEL_INSTANCE_LOADING" value { string_value: "no" } }'
# Goes on when four are there; as they come one by one, that would never be.
MEETING = """
folder = os.path.dirname(__file__)
open(os.path.join(folder, args["model_instance_name"] + ".here"), "w").close()
while len([name for name in os.listdir(folder) if name.endswith(".here")]) < 4:
    time.sleep(0.01)
"""
DIARY = """
with open(os.path.join(os.path.dirname(__file__), "diary"), "ab", buffering=0) as diary:
    diary.write(b"(")
    time.sleep(0.05)
    diary.write(b")")
"""


# Answers what initialize was told; the length of the row says how many bytes of it.
ARGUMENTS = code(
    "y = np.frombuffer(self.text, np.uint8)[None]",
    initialize="import json; self.text = json.dumps(args).encode()",
)
GROUPS = """
instance_group [
  { name: "small" kind: KIND_CPU count: 1 },
  { name: "large" kind: KIND_MODEL count: 2 }
]
parameters { key: "threshold" value { string_value: "0.5" } }
"""


@pytest.fixture(scope="module")
def server(start_module_server):
    repository = {
        "parallel": model(code(initialize=MEETING), config(FOUR)),
        "sequential": model(code(initialize=DIARY), config(ONE_BY_ONE)),
        "arguments": model(ARGUMENTS, config(GROUPS)),
        "gpu": model(code(), config(kind="KIND_GPU")),
        "gpu_numbers": model(code(), config("instance_group [{ kind: KIND_GPU gpus: [ 7 ] }]")),
    }
    # Devices of the machine must not matter.
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    flags = ["--exit-on-error=false"]
    return start_module_server(repository, flags=flags, environment=environment).await_ports()


def told(server, name):
    text = bytes(int(value) for value in server.infer(name))
    return json.loads(text)


def test_instances_are_initialized_side_by_side(server):
    assert server.serves("parallel")
    titles = " ".join(server.worker_titles())
    assert [titles.count(f"parallel_0_{number}") for number in range(5)] == [1, 1, 1, 1, 0]


def test_switch_has_them_initialized_one_by_one(server):
    assert server.serves("sequential")
    diary = server.repository / "sequential" / "1" / "diary"
    assert diary.read_text() == "()()()()"


def test_initialize_is_told_who_it_is(server):
    arguments = told(server, "arguments")

    assert arguments.pop("model_instance_name") in {"small_0", "large_0", "large_1"}
    assert arguments.pop("model_instance_kind") in {"CPU", "MODEL"}
    settings = json.loads(arguments.pop("model_config"))
    assert arguments == {
        "model_instance_device_id": "0",
        "model_name": "arguments",
        "model_repository": str(server.repository / "arguments"),
        "model_version": "1",
    }
    assert settings["parameters"] == {"threshold": {"string_value": "0.5"}}
    assert [group["count"] for group in settings["instance_group"]] == [1, 2]


@pytest.mark.parametrize("name", ["gpu", "gpu_numbers"])
def test_gpu_instance_without_a_gpu_is_refused(server, name):
    row = server.index()[name]

    assert row["state"] == "UNAVAILABLE"
    assert "GPU" in row["reason"] or "gpu" in row["reason"], row
