# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.pytorch import packages
from pytriton.runtime.framework_backends.pytorch.configuration import TensorEntry

LEAF = {"type": None, "context": None, "children_spec": []}


def node(kind, children, context="null"):
    return {"type": kind, "context": context, "children_spec": children}


def many(*children):
    return node("builtins.tuple", list(children))


def keyed(**children):
    return node("builtins.dict", list(children.values()), json.dumps(list(children)))


def text(root):
    return json.dumps([1, root])


# forward(a, (b, {"k": c}), *, scale, table={"b": ...})
ARGUMENTS = text(
    many(many(LEAF, many(LEAF, keyed(k=LEAF))), keyed(scale=LEAF, table=keyed(b=LEAF)))
)
INPUTS = [
    ("INPUT__0", "ARGS[0]"),
    ("INPUT__1", "ARGS[1][0]"),
    ("INPUT__2", "ARGS[1][1][k]"),
    ("INPUT__3", "KWARGS[scale]", "KWARGSscale"),
    ("INPUT__4", "KWARGS[table][b]", "KWARGStable[b]"),
]


def entries(*names):
    return [TensorEntry(name, "TYPE_FP32") for name in names]


def test_inputs_have_a_number_and_names_by_structure():
    assert packages.input_names(ARGUMENTS) == INPUTS


@pytest.mark.parametrize(
    "root, expected",
    [
        (LEAF, ["RESULT"]),
        (many(LEAF, LEAF), ["RESULT[0]", "RESULT[1]"]),
        (keyed(sum=LEAF, more=node("builtins.list", [LEAF])), ["RESULT[sum]", "RESULT[more][0]"]),
    ],
)
def test_outputs_have_a_number_and_names_by_structure(root, expected):
    names = packages.output_names(text(root))

    assert names == [(f"OUTPUT__{index}", name) for index, name in enumerate(expected)]


def test_other_structures_are_refused():
    with pytest.raises(InternalError, match=r"got builtins\.set"):
        packages.output_names(text(node("builtins.set", [LEAF])))


def test_both_kinds_of_names_can_be_mixed():
    configured = entries("KWARGStable[b]", "INPUT__0", "ARGS[1][1][k]", "KWARGS[scale]", "INPUT__1")

    positions = packages.bind_inputs("m", "m_0_0", configured, INPUTS)

    assert list(positions.values()) == [4, 0, 2, 3, 1]


@pytest.mark.parametrize(
    "names, expected",
    [
        (
            ("INPUT__0", "X"),
            (
                'Input "X" for model instance "m_0_0" is not found in model input map. The model'
                " has INPUT__0 or ARGS[0], INPUT__1 or ARGS[1]"
            ),
        ),
        (
            ("INPUT__0",),
            'Failed to load model "m": configuration expects 1 inputs, but model expects 2 inputs.',
        ),
        (
            ("INPUT__0", "ARGS[0]"),
            (
                'Failed to load model "m": inputs "INPUT__0" and "ARGS[0]" are the same tensor of'
                " the model."
            ),
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(names, expected):
    model_names = [("INPUT__0", "ARGS[0]"), ("INPUT__1", "ARGS[1]")]

    with pytest.raises(InternalError) as raised:
        packages.bind_inputs("m", "m_0_0", entries(*names), model_names)

    assert str(raised.value) == expected


def test_outputs_may_be_fewer_but_not_unknown():
    names = [("OUTPUT__0", "RESULT[0]"), ("OUTPUT__1", "RESULT[1]")]

    assert packages.bind_outputs("i", entries("RESULT[1]"), names) == {"RESULT[1]": 1}
    with pytest.raises(InternalError, match='Output "Y" for model instance "i" is not found'):
        packages.bind_outputs("i", entries("Y"), names)
