# SPDX-License-Identifier: Apache-2.0
"""Requests of sequences that travel as chunks: the same in the engine's process and elsewhere."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import BYTES
from pytriton.base.errors import CancelledError
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec
from pytriton.serving.engine.sequence.sequence_inputs import added_input_names
from tests.column_rig import DoublingInstance
from tests.contract.seam import doubled

START, END = 1, 2
VALUES = [[1, 2], [3, 4], [5, 6]]


def sequence_model(seam, **settings):
    """Adds a model with sequences; returns it and its instance."""
    model, _ = seam.doubling(0, sequence=SequenceSpec(max_candidates=8, **settings))
    added = added_input_names(model.spec)
    instance = DoublingInstance("m_0_0", model, added=added)
    model.add_instance(instance)
    seam.run()
    return model, instance


def details(*each: tuple[int | str, int]):
    return [{"correlation_id": sequence, "flags": flags} for sequence, flags in each]


def test_members_of_one_sequence_run_one_after_the_other(seam):
    model, instance = sequence_model(seam)
    chunk, _ = seam.chunk(VALUES, details=details((7, START), (8, START | END), (7, END)))
    seam.run()
    seam.finish(instance)

    assert [frame.rows for frame in instance.frames] == [[1, 1], [1]]
    assert seam.ends.of(chunk) == [doubled(each) for each in VALUES]
    assert not model.is_busy
    seam.until_nothing_is_left()


def test_sequences_go_on_with_the_next_chunk(seam):
    _, instance = sequence_model(seam)
    seam.chunk(VALUES[:2], details=details((7, START), (8, START)))
    seam.run()
    seam.finish(instance)
    chunk, _ = seam.chunk(VALUES, details=details((7, END), (9, 0), (8, END)))
    seam.run()
    seam.finish(instance)

    first, refused, last = seam.ends.of(chunk)
    assert (first, last) == (doubled(VALUES[0]), doubled(VALUES[2]))
    assert refused[0] == "refused"
    assert "sequence 9 to model 'm' must specify the START flag" in refused[1]


def test_text_ids_reach_the_model(seam):
    id_input = ControlSpec(kind=SequenceControlKind.CORRID, name="id", dtype=BYTES)
    _, instance = sequence_model(seam, controls=(id_input,))
    seam.chunk(VALUES[:2], details=details(("first", START), ("second", START)))
    seam.run()

    assert instance.inputs()["id"] == [b"first", b"second"]
    seam.finish(instance)


def test_chunk_follows_earlier_requests_of_its_sequence(seam):
    _, instance = sequence_model(seam)
    call = seam.infer([1, 2], correlation_id=7, flags=START)
    chunk, _ = seam.chunk(VALUES[1:], details=details((7, 0), (7, END)))
    seam.run()
    seam.finish(instance)

    assert call.values == doubled([1, 2])
    assert seam.ends.of(chunk) == [doubled(each) for each in VALUES[1:]]


@pytest.mark.parametrize("is_chunk", [False, True])
def test_sequence_may_begin_again_in_the_iteration_that_cancels_it(seam, is_chunk):
    _, instance = sequence_model(seam)
    first = seam.infer([1, 2], correlation_id=7, flags=START)
    seam.run()
    waiting = seam.infer([3, 4], correlation_id=7)
    seam.run()
    waiting.inference.cancel()
    if is_chunk:
        chunk, _ = seam.chunk([[5, 6]], details=details((7, START)))
    else:
        again = seam.infer([5, 6], correlation_id=7, flags=START)
    seam.run()
    seam.finish(instance)

    assert first.values == doubled([1, 2])
    assert type(waiting.sink.errors[0]) is CancelledError
    assert (seam.ends.of(chunk) if is_chunk else [again.values]) == [doubled([5, 6])]
