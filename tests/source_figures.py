# SPDX-License-Identifier: Apache-2.0
"""The size and the shape of the source, which `scripts/measure` prints.

Only import cycles and imports that point up make it fail; the other figures are for people.
"""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import io
import pathlib
import sys
import tokenize
from collections import defaultdict

from tests import source_rules

SOURCE = pathlib.Path(__file__).parent.parent / "src"


@dataclasses.dataclass
class Module:
    """The facts of one file."""

    name: str
    is_package: bool
    lines: int
    comments: int
    classes: list[str]
    imports: set[str]  # also those for type checkers
    run_time_imports: set[str]
    problems: list[str]

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


def modules_of(source: pathlib.Path) -> list[Module]:
    """Reads all files below a folder that is on the import path."""
    paths = {_name_of(path, source): path for path in sorted(source.rglob("*.py"))}
    return [_read(name, path, paths) for name, path in paths.items()]


def _name_of(path: pathlib.Path, source: pathlib.Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def _read(name: str, path: pathlib.Path, known: dict[str, pathlib.Path]) -> Module:
    text = path.read_text()
    tree = source_rules.syntax_tree(text)
    named = [imported for imported, _ in source_rules.imported_modules(tree)]
    named += [named_one for named_one, _ in source_rules.names_to_import(name, tree)]
    found = {each if each in known else each.rpartition(".")[0] for each in named}
    return Module(
        name=name,
        is_package=path.name == "__init__.py",
        lines=text.count("\n"),
        comments=_comments(text),
        classes=[node.name for node in source_rules.nodes_of(tree, ast.ClassDef)],
        imports=(found & set(known)) - {name},
        run_time_imports=set(source_rules.run_time_imports(name, text, known)),
        problems=_problems(name, text),
    )


def _comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and "SPDX" not in token.string for token in tokens)


def _problems(name: str, text: str) -> list[str]:
    if name.split(".", maxsplit=1)[0] != "pytriton":
        return []
    rules = (source_rules.upward_imports, source_rules.sideways_imports)
    return [problem for rule in rules for problem in rule(name, text)]


def satellites(modules: list[Module]) -> list[tuple[str, str]]:
    """Modules with exactly one importer, which is in the same package, each with that importer."""
    importers = defaultdict(list)
    for module in modules:
        for imported in module.imports:
            importers[imported].append(module)
    return [
        (module.name, importers[module.name][0].name)
        for module in modules
        if len(importers[module.name]) == 1
        and not module.is_package
        and importers[module.name][0].package == module.package
    ]


def repeated_classes(modules: list[Module]) -> dict[str, list[str]]:
    """Names of classes that occur more than once, with the modules that have them."""
    places = defaultdict(list)
    for module in modules:
        for name in module.classes:
            places[name].append(module.name)
    return {name: where for name, where in places.items() if len(where) > 1}


def import_cycle(modules: list[Module]) -> list[str]:
    """The modules of one cycle of imports that run, or none."""
    graph = {module.name: module.run_time_imports for module in modules}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def report(modules: list[Module], *, is_long: bool = False) -> list[str]:
    """The lines to print; a long report names the modules and classes that are counted."""
    alone, repeated = satellites(modules), repeated_classes(modules)
    lines = [
        f"{len(modules):7,} files",
        f"{_sum_of(modules, 'lines'):7,} lines, with {_share(modules)} comments in 100",
        f"{len(alone):7,} modules with exactly one importer, in the same package",
        f"{len(repeated):7,} class names that occur more than once",
    ]
    for floor, parts in sorted(_floors(modules).items()):
        lines.append(f"        {floor:28}{len(parts):4} files{_sum_of(parts, 'lines'):8,} lines")
    if is_long:
        lines += [f"{name} has one importer, {importer}" for name, importer in alone]
        lines += [f"{name} is a class in {', '.join(where)}" for name, where in repeated.items()]
    return lines


def problems_of(modules: list[Module]) -> list[str]:
    """Imports that point up, and a cycle if there is one."""
    problems = [problem for module in modules for problem in module.problems]
    if cycle := import_cycle(modules):
        problems.append(f"modules import one another in a circle: {' -> '.join(cycle)}")
    return problems


def _sum_of(modules: list[Module], figure: str) -> int:
    return sum(getattr(module, figure) for module in modules)


def _share(modules: list[Module]) -> str:
    return f"{100 * _sum_of(modules, 'comments') / _sum_of(modules, 'lines'):.1f}"


def _floors(modules: list[Module]) -> dict[str, list[Module]]:
    """The modules of each package in `pytriton`, and of the other packages."""
    floors = defaultdict(list)
    for module in modules:
        parts = module.package.split(".")
        floors[parts[1] if len(parts) > 1 else parts[0]].append(module)
    return floors


if __name__ == "__main__":
    found = modules_of(SOURCE)
    sys.stdout.writelines(f"{line}\n" for line in report(found, is_long="-v" in sys.argv))
    if problems := problems_of(found):
        sys.exit("\n".join(problems))
