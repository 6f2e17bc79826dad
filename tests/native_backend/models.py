# SPDX-License-Identifier: Apache-2.0
"""The models of these tests, which are only configurations."""

from __future__ import annotations

from pathlib import Path

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16"),
)
SCRIPT = 'input [ { name: "SCRIPT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
OUT = 'output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
LIVE = ("ModelInstanceExecute", "ModelInstanceFinalize", "ModelFinalize")
CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
AUTO_COMPLETED = (
    "tensors",
    "dynamic",
    "sequence",
    "decoupled",
    "others",
    "no tensors",
    "bad field",
    "bad type",
    "bad value",
    "version",
    "unasked",
    "twice",
    "late",
    "nothing",
)


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


def _identity(batching: str) -> str:
    inputs = [
        f'{{ name: "{name}" data_type: TYPE_{name.replace("BYTES", "STRING")} dims: [ -1 ]'
        " optional: true }"
        for name in DATATYPES
    ]
    outputs = [
        f'{{ name: "OUT_{name}" data_type: TYPE_{name.replace("BYTES", "STRING")} dims: [ -1 ] }}'
        for name in DATATYPES
    ]
    return (
        f'backend: "identity"\nmax_batch_size: 8\ninput [ {", ".join(inputs)} ]\n'
        f"output [ {', '.join(outputs)} ]\n{batching}"
    )


def _repeat(policy: str) -> str:
    return (
        'backend: "repeat"\n'
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },\n'
        '  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },\n'
        '  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },\n'
        '  { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n' + policy
    )


def _square(**settings: str) -> str:
    return (
        'backend: "square"\ninput [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        + DECOUPLED
        + parameters(**settings)
    )


def _scripted(backend: str, more: str = "") -> str:
    return f'backend: "{backend}"\n{SCRIPT}{OUT}{more}'


STATEFUL = """backend: "stateful"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "SCRIPT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  state [ {
    input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
  } ]
}
"""
ODD_OUTPUTS = """output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "NUMBERS" data_type: TYPE_INT32 dims: [ 1, 2 ] } ]
"""
FACTS = """backend: "facts"
input [ { name: "GROUP" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "FACTS" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

# Loaded at the start.
WANTED = {
    "identity": _identity(""),
    "identity_together": _identity(
        "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }\n"
    ),
    "repeat": _repeat(DECOUPLED),
    "repeat_coupled": _repeat(""),
    "square": _square(),
    "square_scripted": _square(CUSTOM_FAIL_COUNT="1", CUSTOM_EMPTY_COUNT="2"),
    "square_slow": _square(CUSTOM_INFER_DELAY_NS="20000000"),
    "failing": _scripted("failing"),
    "facts": FACTS + parameters(colour="blue"),
    "stateful": STATEFUL,
    "caller": _scripted("caller"),
    "odd": f'backend: "odd"\n{SCRIPT}{ODD_OUTPUTS}',
    "odd_decoupled": f'backend: "odd"\n{SCRIPT}{ODD_OUTPUTS}{DECOUPLED}',
}
# Loaded by the cases that want them.
FURTHER = {
    "crash": _scripted("crash"),
    "crash_at_load": _scripted("crash", parameters(initialize="abort")),
    "broken": _scripted("broken"),
    "nowhere": _scripted("nowhere"),
    "newer": f'backend: "newer"\n{SCRIPT}{ODD_OUTPUTS}',
    "without_execute": _scripted("without_execute"),
    "failing_initialize": _scripted("failing_initialize"),
    "failing_attribute": _scripted("failing_attribute"),
    "failing_finalize": _scripted("failing_finalize"),
    "two_instances": FACTS + "instance_group [ { count: 2 kind: KIND_CPU } ]\n",
    "kind_model": FACTS + "instance_group [ { kind: KIND_MODEL } ]\n",
    "another_policy": FACTS + 'instance_group [ { kind: KIND_CPU host_policy: "mine" } ]\n',
    "file_name": FACTS + 'runtime: "libtriton_facts.so"\n',
    "missing_file_name": FACTS + 'runtime: "libtriton_none.so"\n',
    "file_name_outside": FACTS + 'runtime: "../facts/libtriton_facts.so"\n',
    **{
        f"failing_{code}": _scripted("failing", parameters(fail_at="ModelInitialize", code=code))
        for code in CODES.split()
    },
    "failing_instance": _scripted("failing", parameters(fail_at="ModelInstanceInitialize")),
    **{f"failing_{place}": _scripted("failing", parameters(fail_at=place)) for place in LIVE},
    **{
        f"auto_{name.replace(' ', '_')}": 'backend: "auto_complete"\n' + parameters(set=name)
        for name in AUTO_COMPLETED
    },
    "auto_dynamic_for_sequences": 'backend: "auto_complete"\nmax_batch_size: 4\n'
    "sequence_batching { }\n" + parameters(set="dynamic"),
    "auto_smaller_batch": 'backend: "auto_complete"\nmax_batch_size: 2\n'
    + parameters(set="tensors"),
    "auto_bigger_batch": 'backend: "auto_complete"\nmax_batch_size: 16\n'
    + parameters(set="tensors"),
    "auto_own_tensors": 'backend: "auto_complete"\n'
    'input [ { name: "OTHER" data_type: TYPE_INT8 dims: [ 3 ] } ]\n'
    'output [ { name: "OUT" data_type: TYPE_INT8 dims: [ 3 ] } ]\n' + parameters(set="tensors"),
}


def write_repository(folder: Path) -> None:
    """All models, in `folder`."""
    for name, config in {**WANTED, **FURTHER}.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
