# SPDX-License-Identifier: Apache-2.0
"""The response cache tells requests apart as a model does, owns its bytes and keeps its limit."""

from __future__ import annotations

import gc
import tracemalloc
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.dtypes import BYTES, FP32, INT32, DataType
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.serving.engine.answer_cache import EXACT_BYTES, cache_key
from pytriton.serving.engine.cache import ResponseStore
from tests.fakes import infer_request


def tensor(
    data: Any = b"\x01\x02\x03\x04",
    name: str = "IN",
    dtype: DataType = FP32,
    shape: tuple[int, ...] | None = None,
) -> InferTensor:
    return InferTensor(name, dtype, (1, len(data) // 4) if shape is None else shape, data)


def request(*inputs: InferTensor, **fields: Any) -> InferRequest:
    inputs = inputs or (tensor(),)
    named = {each.name: each for each in inputs}
    return infer_request(model_name=fields.pop("model", "m"), inputs=named, **fields)


def test_lookup_gives_the_inserted_outputs_and_parameters():
    cache = ResponseStore(10_000)
    key = cache_key(request(), 1)

    assert cache.lookup(key) is None
    assert cache.insert(key, [tensor(b"abcd", name="OUT")], {"note": "x"})
    found = cache.lookup(cache_key(request(), 1))

    assert found is not None
    assert found.outputs == (tensor(b"abcd", name="OUT"),)
    assert found.parameters == {"note": "x"}
    assert (cache.hits, cache.misses, cache.evictions, len(cache)) == (1, 1, 0, 1)


@pytest.mark.parametrize(
    "other",
    [
        request(model="n"),
        request(tensor(b"\x01\x02\x03\x05")),
        request(tensor(shape=(2, 2), dtype=BYTES)),
        request(tensor(dtype=INT32)),
        request(tensor(shape=(1,))),
        request(tensor(name="OTHER")),
        request(tensor(), tensor(name="OTHER")),
        request(outputs=("OUT",)),
        request(outputs=()),
        request(parameters={"top_k": 1}),
    ],
)
def test_anything_a_model_can_see_changes_the_key(other):
    assert cache_key(other, 1) != cache_key(request(), 1)


def test_version_and_load_change_the_key():
    assert len({cache_key(request(), 1), cache_key(request(), 2), cache_key(request(), 1, 1)}) == 3


@pytest.mark.parametrize("values", [(1, True, 1.0, "1"), (0.0, -0.0, 0, False)])
def test_parameters_that_are_equal_in_python_differ_in_the_key(values):
    keys = {cache_key(request(parameters={"p": value}), 1) for value in values}

    assert len(keys) == len(values)


def test_id_priority_and_order_do_not_change_the_key():
    first, second = tensor(), tensor(b"wxyz", name="B")

    one = request(first, second, id="1", priority=1, parameters={"a": 1, "b": 2})
    two = request(second, first, id="2", priority=2, parameters={"b": 2, "a": 1})

    assert cache_key(one, 1) == cache_key(two, 1)


@pytest.mark.parametrize(
    "field", [{"correlation_id": 7}, {"correlation_id": "7"}, {"flags": 1}, {"timeout_us": 9}]
)
def test_what_a_model_reads_of_a_request_changes_the_key(field):
    assert cache_key(request(**field), 1) != cache_key(request(), 1)


@pytest.mark.parametrize("size", [4, EXACT_BYTES, EXACT_BYTES + 1, 100_000])
def test_key_depends_on_every_byte_and_not_on_the_kind_of_buffer(size):
    data = bytes(size)
    changed = data[:-1] + b"\x01"

    key = cache_key(request(tensor(data, shape=(size,))), 1)

    assert cache_key(request(tensor(bytearray(data), shape=(size,))), 1) == key
    assert cache_key(request(tensor(memoryview(data), shape=(size,))), 1) == key
    assert cache_key(request(tensor(changed, shape=(size,))), 1) != key


def test_key_of_a_typed_memoryview_counts_its_bytes():
    data = bytes(EXACT_BYTES + 8)
    typed = InferTensor("IN", FP32, (65, 2), memoryview(data).cast("d"))
    plain = InferTensor("IN", FP32, (65, 2), data)

    assert cache_key(request(typed), 1) == cache_key(request(plain), 1)


def test_digest_of_a_large_tensor_is_no_match_for_a_small_one_that_holds_it():
    large = cache_key(request(tensor(bytes(1000), dtype=BYTES, shape=(1,))), 1)
    digest = next(
        large[at : at + 32] for at in range(len(large)) if large[at - 2 : at] == b"\xc4\x20"
    )
    small = cache_key(request(tensor(digest, dtype=BYTES, shape=(1,))), 1)

    assert digest in small
    assert small != large


def test_key_holds_a_digest_instead_of_a_large_tensor():
    assert len(cache_key(request(tensor(bytes(100_000))), 1)) < 200


def test_stored_outputs_own_their_bytes():
    cache = ResponseStore(10_000)
    shared_memory = bytearray(b"abcd")
    output = tensor(memoryview(shared_memory), name="OUT")
    parameters = {"note": "x"}
    cache.insert(b"key", [output], parameters)

    shared_memory[:] = b"____"
    output.name = "CHANGED"
    parameters["note"] = "changed"
    found = cache.lookup(b"key")

    assert found is not None
    assert found.outputs == (tensor(b"abcd", name="OUT"),)
    assert found.outputs[0].data.readonly
    assert found.parameters == {"note": "x"}


@given(st.lists(st.tuples(st.sampled_from(["lookup", "insert"]), st.integers(0, 7))))
def test_least_recently_used_entries_leave_in_any_order_of_uses(uses):
    cache = ResponseStore(1000)  # for three entries
    expected: OrderedDict[bytes, int] = OrderedDict()
    for number, (use, name) in enumerate(uses):
        key = bytes([name])
        if use == "insert":
            cache.insert(key, [tensor(number.to_bytes(4, "little"))])
            expected.pop(key, None)
            expected[key] = number
            if len(expected) > 3:
                expected.popitem(last=False)
        else:
            found = cache.lookup(key)
            value = None if found is None else int.from_bytes(found.outputs[0].data, "little")
            assert value == expected.get(key)
            if found is not None:
                expected.move_to_end(key)
        cache.check_integrity()

    assert len(cache) == len(expected)
    assert {key for key in expected if cache.lookup(key)} == set(expected)


def test_hits_take_no_memory_and_keep_their_order():
    cache = ResponseStore(1000)  # for three entries
    for key in (b"a", b"b", b"c"):
        cache.insert(key, [tensor()])
    tracemalloc.start()
    try:
        for _ in range(10_000):
            cache.lookup(b"b")
            cache.lookup(b"a")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    cache.insert(b"d", [tensor()])
    cache.insert(b"e", [tensor()])

    assert used < 50_000
    assert [key for key in (b"a", b"b", b"c", b"d", b"e") if cache.lookup(key)] == [
        b"a",
        b"d",
        b"e",
    ]


def test_entry_above_the_limit_is_not_stored_and_evicts_nobody():
    cache = ResponseStore(5000)
    cache.insert(b"small", [tensor()])

    assert not cache.insert(b"large", [tensor(bytes(5000))])
    assert cache.lookup(b"large") is None
    assert cache.lookup(b"small")


@pytest.mark.parametrize(
    "others",
    [
        [tensor(b"wxyz", name="OTHER")],
        [tensor(b"wxyz", name="OUT", dtype=INT32)],
        [tensor(b"wxyz", name="OUT", shape=(1,))],
        [tensor(b"wxyzwxyz", name="OUT")],
        [tensor(b"wxyz", name="OUT"), tensor(b"efgh", name="TWO")],
        [tensor(bytes(5000), name="OUT")],
        [],
    ],
)
def test_responses_of_different_form_do_not_mix(others):
    cache = ResponseStore(100_000)
    first = [tensor(b"abcd", name="OUT")]

    for key, outputs in ((b"a", first), (b"b", others), (b"c", others), (b"d", first)):
        cache.insert(key, outputs)

    found = [cache.lookup(key) for key in (b"a", b"b", b"c", b"d")]
    assert [list(each.outputs) for each in found if each] == [first, others, others, first]


def test_strings_are_cut_where_their_outputs_end():
    cache = ResponseStore(100_000)
    for key, cut in ((b"a", 5), (b"b", 6)):
        strings = b"\x01\x00\x00\x00u\x02\x00\x00\x00uu"
        parts = strings[:cut], strings[cut:]
        outputs = [tensor(part, name="OUT", dtype=BYTES, shape=(1,)) for part in parts]
        cache.insert(key, outputs)

        found = cache.lookup(key)
        assert found is not None
        assert list(found.outputs) == outputs


def test_parameters_of_a_response_are_its_own():
    cache = ResponseStore(100_000)
    for key, parameters in ((b"a", None), (b"b", {"p": 1}), (b"c", {}), (b"d", {"p": 2})):
        cache.insert(key, [tensor()], parameters)

    found = [cache.lookup(key) for key in (b"a", b"b", b"c", b"d")]
    assert [each.parameters for each in found if each] == [None, {"p": 1}, None, {"p": 2}]


def test_output_of_wide_elements_keeps_all_bytes():
    cache = ResponseStore(100_000)
    data = bytes(range(32))
    cache.insert(b"a", [tensor(data[:4], shape=(4,))])
    cache.insert(b"b", [tensor(memoryview(data).cast("d"), shape=(4,))])
    found = cache.lookup(b"b")

    assert found is not None
    assert found.outputs[0].data == data


def test_second_insertion_replaces_the_first():
    cache = ResponseStore(10_000)
    cache.insert(b"key", [tensor(bytes(100))])
    size = cache.byte_size
    cache.insert(b"key", [tensor(bytes(104))])
    found = cache.lookup(b"key")

    assert found is not None
    assert found.outputs[0].data == bytes(104)
    assert (len(cache), cache.byte_size, cache.evictions) == (1, size + 6, 0)


def test_clear_drops_the_entries():
    cache = ResponseStore(10_000)
    cache.insert(b"key", [tensor()])

    cache.clear()

    assert cache.lookup(b"key") is None
    assert (len(cache), cache.byte_size) == (0, 0)


def test_repr_shows_the_counts():
    cache = ResponseStore(10_000)
    cache.insert(b"key", [])
    cache.lookup(b"key")
    cache.lookup(b"other")

    assert repr(cache) == (
        f"<ResponseCache 1 entries, {cache.byte_size} of 10000 bytes, 1 hits, 1 misses, "
        "0 evictions>"
    )


@given(
    st.integers(0, 12_000),
    st.lists(st.tuples(st.sampled_from((b"a", b"b", b"c", b"d")), st.integers(0, 5000))),
)
def test_limit_holds_after_every_insertion(byte_limit, insertions):
    cache = ResponseStore(byte_limit)
    for key, size in insertions:
        is_stored = cache.insert(key, [tensor(bytes(size))])
        found = {each: cache.lookup(each) for each in (b"a", b"b", b"c", b"d")}

        cache.check_integrity()
        assert cache.byte_size <= byte_limit
        assert bool(cache.byte_size) == any(found.values())
        assert cache.byte_size >= sum(len(each.outputs[0].data) for each in found.values() if each)
        if is_stored:
            assert found[key].outputs[0].data == bytes(size)


@pytest.mark.parametrize(
    "inputs, size", [(1, 4), (2, 4), (8, 8), (2, EXACT_BYTES), (1, 20_000), (4, 64)]
)
def test_memory_stays_below_the_limit(inputs, size):
    byte_limit = 500_000
    cache = ResponseStore(byte_limit)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(3000):
            data = number.to_bytes(4, "little") + bytes(size - 4)
            tensors = [tensor(data, name=f"IN{index}") for index in range(inputs)]
            key = cache_key(request(*tensors, outputs=("A",)), 1)
            cache.insert(key, [tensor(bytearray(data), name=f"OUT{size}")], {"number": number})
        del data, tensors, key
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert cache.evictions > 0
    assert used <= byte_limit
    assert used >= byte_limit / 2
