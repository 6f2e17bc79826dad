# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: links to files outside `docs/` work on the site as they do in the repository.

A file that a page links to becomes a page of the site: Markdown as it is, anything else as a block
of code. Links are rewritten from paths of the repository to paths of the site.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from collections.abc import Callable, Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = pathlib.Path(__file__).parents[2]
DOCS = "docs/"
IMAGES = (".png", ".svg", ".jpg")
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<after>(?:#[^)\s]*)?\))")
FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
LANGUAGES = {".py": "python", ".sh": "shell", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file of the repository that pages link to, also through another one."""
    waiting = [_repository_path(file.src_uri) for file in files if file.is_documentation_page()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        if not page.endswith(".md"):
            continue
        for path in _linked_files(page):
            if path not in seen:
                seen.add(path)
                waiting.append(path)
                if files.get_file_from_path(_site_path(path)) is None:
                    files.append(_file(path, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page to paths of the site."""
    source = _repository_path(page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        path = _repository_target(source, match["target"])
        if path is None:
            return match[0]
        here = posixpath.dirname(page.file.src_uri)
        return match["before"] + posixpath.relpath(_site_path(path), here or ".") + match["after"]

    return _outside_of_code(markdown, lambda line: LINK.sub(rewrite, line))


def _linked_files(page: str) -> Iterator[str]:
    found: list[str] = []

    def note(line: str) -> str:
        for match in LINK.finditer(line):
            path = _repository_target(page, match["target"])
            if path is not None:
                found.append(path)
        return line

    _outside_of_code((REPOSITORY / page).read_text(encoding="utf-8"), note)
    yield from found


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """The text with `change` applied to each line that is not in a fenced block."""
    lines: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        mark = FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
            lines.append(line)
        else:
            fence = mark[1] if mark else ""
            lines.append(line if mark else change(line))
    return "\n".join(lines)


def _repository_target(page: str, target: str) -> str | None:
    """The file that a link of a page means, or None if it is not a file of the repository."""
    if ":" in target:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if (REPOSITORY / path).is_dir():
        path = f"{path}/README.md"
    return path if (REPOSITORY / path).is_file() else None


def _repository_path(site_path: str) -> str:
    if (REPOSITORY / DOCS / site_path).exists():
        return DOCS + site_path
    return site_path if (REPOSITORY / site_path).exists() else site_path.removesuffix(".md")


def _site_path(path: str) -> str:
    if path == "README.md":  # its subject is the site's first page, too
        return "index.md"
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return path if path.endswith((".md", *IMAGES)) else f"{path}.md"


def _file(path: str, config: MkDocsConfig) -> File:
    level = InclusionLevel.NOT_IN_NAV
    source = REPOSITORY / path
    if path.endswith((".md", *IMAGES)):
        return File.generated(config, path, abs_src_path=str(source), inclusion=level)
    language = LANGUAGES.get(source.suffix, "text")
    text = source.read_text(encoding="utf-8")
    content = f"# {source.name}\n\n`{path}`\n\n````{language}\n{text}````\n"
    return File.generated(config, _site_path(path), content=content, inclusion=level)
