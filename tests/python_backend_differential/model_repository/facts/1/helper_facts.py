# SPDX-License-Identifier: Apache-2.0
"""The pure functions, and ModelConfig as a plain object."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

TYPES = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16 NONE"
DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
CONFIG = {"input": [{"name": "a", "dims": [1]}, {"name": "b"}], "output": [{"name": "c"}]}


def name_of(dtype):
    return None if dtype is None else np.dtype(dtype).name


def conversions(_request):
    return {
        **{
            f"TYPE_{name}": lambda name=name: name_of(
                pb_utils.triton_string_to_numpy(f"TYPE_{name}")
            )
            for name in TYPES.split()
        },
        **{
            f"type {number}": lambda number=number: name_of(pb_utils.triton_to_numpy_type(number))
            for number in (-1, *range(16))
        },
        **{
            f"{dtype}": lambda dtype=dtype: pb_utils.numpy_to_triton_type(getattr(np, dtype))
            for dtype in (*DTYPES[1:], "bool_", "object_", "bytes_", "str_", "complex64")
        },
        "dtype object": lambda: pb_utils.numpy_to_triton_type(np.dtype("int32")),
        "bool of Python": lambda: pb_utils.numpy_to_triton_type(bool),
        "string table": lambda: {
            key: name_of(value) for key, value in pb_utils.TRITON_STRING_TO_NUMPY.items()
        },
        "None for a type": lambda: pb_utils.triton_string_to_numpy(None),
    }


def lookups(request):
    response = pb_utils.InferenceResponse([pb_utils.Tensor("o", np.zeros(1, np.int8))])
    return {
        "input": lambda: pb_utils.get_input_tensor_by_name(request, "GROUP").name(),
        "input that is not there": lambda: pb_utils.get_input_tensor_by_name(request, "OTHER"),
        "output": lambda: pb_utils.get_output_tensor_by_name(response, "o"),
        "output that is not there": lambda: pb_utils.get_output_tensor_by_name(response, "p"),
        "input config": lambda: pb_utils.get_input_config_by_name(CONFIG, "a"),
        "input config that is not there": lambda: pb_utils.get_input_config_by_name(CONFIG, "c"),
        "input config of nothing": lambda: pb_utils.get_input_config_by_name({}, "c"),
        "output config": lambda: pb_utils.get_output_config_by_name(CONFIG, "c"),
        "output config of nothing": lambda: pb_utils.get_output_config_by_name({}, "c"),
        "decoupled": lambda: pb_utils.using_decoupled_model_transaction_policy(
            {"model_transaction_policy": {"decoupled": True}}
        ),
        "not decoupled": lambda: pb_utils.using_decoupled_model_transaction_policy(
            {"model_transaction_policy": {"decoupled": False}}
        ),
        "no policy": lambda: pb_utils.using_decoupled_model_transaction_policy({}),
        "policy without the key": lambda: pb_utils.using_decoupled_model_transaction_policy(
            {"model_transaction_policy": {}}
        ),
        "model dir": lambda: Path(pb_utils.get_model_dir()).name,
    }


def serialised(_request):
    def serialise(*values, dtype=object):
        return pb_utils.serialize_byte_tensor(np.array(values, dtype=dtype))

    return {
        "bytes": lambda: serialise(b"ab", b""),
        "text": lambda: serialise("é"),
        "numbers": lambda: serialise(1, None),
        "fixed bytes": lambda: serialise(b"abc", b"d", dtype="S3"),
        "grid": lambda: pb_utils.serialize_byte_tensor(
            np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object).T
        ),
        "nothing": serialise,
        "floats": lambda: serialise(1.0, dtype=np.float32),
        "text array": lambda: serialise("abc", dtype="U3"),
        "back": lambda: pb_utils.deserialize_bytes_tensor(b"\x01\x00\x00\x00a\x00\x00\x00\x00"),
        "nothing back": lambda: pb_utils.deserialize_bytes_tensor(b""),
    }


def config(**members):
    return pb_utils.ModelConfig(
        json.dumps({"name": "m", "max_batch_size": 4, "input": [], "output": [], **members})
    )


def configs(_request):
    def done(made, method, *arguments):
        getattr(made, method)(*arguments)
        return made.as_dict()

    a = {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}
    known = {"input": [dict(a)], "output": [dict(a)]}
    changed = {
        "data type": {**a, "data_type": "TYPE_INT8"},
        "dims": {**a, "dims": [5]},
        "optional": {**a, "optional": True},
        "nothing": a,
        "reshape": {**a, "reshape": [1]},
        "two more": {**a, "reshape": [1], "format": 1},
        "nothing but a name": {"name": "a"},
        "no name": {"data_type": "TYPE_FP32", "dims": [4]},
        "no dims": {"name": "a", "data_type": "TYPE_FP32"},
        "no data type": {"name": "a", "dims": [4]},
        "nothing at all": {},
    }
    facts = {}
    for way in ("add_input", "add_output"):
        for name, value in changed.items():
            facts[f"{way} changing {name}"] = lambda way=way, value=value: done(
                config(**known), way, value
            )
            facts[f"{way} new with {name}"] = lambda way=way, value=value: done(
                config(), way, value
            )
    invalid = {"name": "a", "data_type": "TYPE_INVALID", "dims": []}
    return {
        **facts,
        "add_input to an unfinished one": lambda: done(config(input=[invalid]), "add_input", a),
        "bigger batch": lambda: done(config(), "set_max_batch_size", 8),
        "same batch": lambda: done(config(), "set_max_batch_size", 4),
        "smaller batch": lambda: done(config(), "set_max_batch_size", 2),
        "dynamic batching": lambda: done(config(), "set_dynamic_batching"),
        "dynamic batching again": lambda: done(
            config(dynamic_batching={"max_queue_delay_microseconds": 5}), "set_dynamic_batching"
        ),
        "dynamic batching of sequences": lambda: done(
            config(sequence_batching={}), "set_dynamic_batching"
        ),
        "dynamic batching of an ensemble": lambda: done(
            config(ensemble_scheduling={}), "set_dynamic_batching"
        ),
        "policy": lambda: done(config(), "set_model_transaction_policy", {"decoupled": True}),
        "policy again": lambda: done(
            config(model_transaction_policy={"decoupled": True}),
            "set_model_transaction_policy",
            {"decoupled": True},
        ),
        "policy changed": lambda: done(
            config(model_transaction_policy={"decoupled": True}),
            "set_model_transaction_policy",
            {"decoupled": False},
        ),
        "policy with more": lambda: done(
            config(), "set_model_transaction_policy", {"decoupled": True, "x": 1}
        ),
        "policy of nothing": lambda: done(config(), "set_model_transaction_policy", {}),
        "dict is live": lambda: [made := config(), made.as_dict().update(x=1), made.as_dict()["x"]][
            2
        ],
        "text that is no JSON": lambda: pb_utils.ModelConfig("{"),
        "private dict": lambda: config()._model_config,
    }


GROUPS = {
    "helper conversions": conversions,
    "helper lookups": lookups,
    "helper serialising": serialised,
    "model config": configs,
}
