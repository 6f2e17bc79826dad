# SPDX-License-Identifier: Apache-2.0
"""Which changes of the source there are, and which of them a seed chooses."""

from __future__ import annotations

import ast

import pytest

from tests.mutations import choosing
from tests.mutations.__main__ import reaching

FILE = "src/pytriton/serving/engine/a.py"


def changed_lines(body: str) -> set[str]:
    """The lines that all mutations of a function make."""
    source = f"def function(a, b, c):\n    {body}\n".encode()
    found = choosing.mutations_of(FILE, source)
    return {each.apply(source).decode().splitlines()[each.line - 1].strip() for each in found}


@pytest.mark.parametrize(
    "line, changed",
    [
        ("c(a < b)", {"c(a <= b)", "pass"}),
        ("c = (a) == (b)", {"c = (a) != (b)"}),
        ("c = a is not None", {"c = a is None"}),
        ("c = a not in b", {"c = a in b"}),
        ("c = a < b <= c", {"c = a <= b <= c", "c = a < b < c"}),
        ("c = a and b and c", {"c = a or b and c", "c = a and b or c"}),
        ("c = not (a or b)", {"c = (a or b)", "c = not (a and b)"}),
        ("c = a + b - c", {"c = a - b - c", "c = a + b + c"}),
        ("c += a", {"c -= a"}),
        ("c = a[0x10]", {"c = a[17]"}),
        ("c = True", {"c = False"}),
        ("return a, b", {"return None"}),
        ("return (a)", {"return None"}),
        ("while a: break", {"while a: continue"}),
        ("c = 'ä' if a == b else 'ö'", {"c = 'ä' if a != b else 'ö'"}),
    ],
)
def test_line_is_changed(line, changed):
    assert changed_lines(line) == changed


@pytest.mark.parametrize(
    "line",
    [
        '"""One, 2 and not 3."""',
        "return None",
        "assert a == 1",
        "raise ValueError(a + b, 1)",
        "logger.info('%d', a + 1)",
        "self._log.debug(a)",
        "c = f'{a + b}'",
        "c = 'text' + a",
        "c: Literal[1]",
        "if TYPE_CHECKING: c = 1",
        "c = a + (  # a comment +\n        b)",
        "def __repr__(self): return 'a'",
        "a(\n        b)",
    ],
)
def test_what_a_test_need_not_notice_is_left_alone(line):
    assert changed_lines(line) == set()


def test_code_that_runs_at_import_is_left_alone():
    source = b"LIMIT = 1 + 2\nclass A:\n    limit: int = 3\n    def a(self, b=4): pass\n"

    assert choosing.mutations_of(FILE, source) == []


def test_diff_shows_the_line():
    source = b"def f(a):\n    if a:\n        return a\n"
    (mutation,) = choosing.choose({FILE: source}, 1, 1)

    assert mutation.diff(source).splitlines()[2:] == [
        "@@ -2,2 +2,2 @@", "     if a:", "-        return a", "+        return None",
    ]  # fmt: skip


def test_marked_source_does_the_same_and_notes_what_runs():
    source = b"def f(a, b):\n    if a < b and not a:\n        return a, b + 1\n    return [a][0]\n"
    mutations = dict(enumerate(choosing.mutations_of(FILE, source)))
    marked = choosing.mark(source, mutations).decode().replace(choosing.MARKS, "marker")
    reached, names = [], {}
    names["marker"] = type("Marker", (), {"mark": reached.append})
    exec(compile(ast.parse(marked), FILE, "exec"), names)

    assert (names["f"](0, 1), names["f"](2, 1)) == ((0, 2), 2)
    assert set(reached) == set(mutations)


def test_every_room_gets_a_mutation_and_a_large_one_more():
    small = b"def f(a):\n    return a + 1\n"
    sources = {f"src/pytriton/{room}/a.py": small for room in ("base", "serving/engine")}
    sources["src/pytriton/tools/perf/load/a.py"] = small * 20

    found = choosing.choose(sources, 1, 5)

    rooms = [choosing.room_of(each.file) for each in found]
    assert rooms == ["base", "serving/engine", "tools/perf", "tools/perf", "tools/perf"]
    assert len({(each.file, each.line) for each in found}) == 5


def test_seed_decides_and_other_rooms_do_not():
    source = b"def f(a):\n    return a + 1\n"
    sources = {f"src/pytriton/base/{name}.py": source * 9 for name in "ab"}
    more = {**sources, "src/pytriton/client/a.py": source}

    chosen = [choosing.choose(sources, seed, 2) for seed in range(9)]

    assert chosen == [choosing.choose(more, seed, 2, {"base"}) for seed in range(9)]
    assert [each[0] for each in chosen] == [choosing.choose(more, seed, 2)[0] for seed in range(9)]
    assert len({str(each) for mutations in chosen for each in mutations}) > 9


def test_place_that_runs_for_an_unknown_test_counts_for_all_that_start_processes():
    log = "1\ta\ttest\n1\tb\tchild\n2\t?\tchild\n3\tc\tchild\n"

    assert reaching(log) == {1: {"a", "b"}, 2: {"b", "c"}, 3: {"c"}}


def test_change_that_changes_nothing_is_known_with_its_reason():
    source = b"def f(a):\n    if a < 1:\n        return 2\n    return a\n"
    mutations = choosing.mutations_of(FILE, source)
    entry = f'file = "{FILE}"\nline = "if a < 1:"\nchange = "`<` is `<=`"\nwhy = "so"'
    same = choosing.equivalent(mutations, {FILE: source}, f"[[equivalent]]\n{entry}")

    assert {mutations[number].words: why for number, why in same.items()} == {"`<` is `<=`": "so"}
