# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: the site has the mark and the colours of the server's page.

Both are read from the files of the page while the site is built, so there is one place for them.
"""

from __future__ import annotations

import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = pathlib.Path(__file__).parents[2] / "src/pytriton/serving/server/page/static"
MARK = "assets/mark.svg"
COLOURS = "assets/colours.css"
_COLOUR = re.compile(r"^ *(--[\w-]+): (light-dark\([^;]+\));", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the mark and a style sheet with the colours to the files of the site."""
    mark = (PAGE / "icon.svg").read_text(encoding="utf-8")
    for path, content in ((MARK, mark), (COLOURS, colours())):
        files.append(File.generated(config, path, content=content))
    return files


def colours() -> str:
    """The style sheet: the names and values of the page, each for light and dark."""
    text = (PAGE / "page.css").read_text(encoding="utf-8")
    found = _COLOUR.findall(text)
    if not found:
        raise ValueError(f"expected colours in {PAGE / 'page.css'}, got none")
    lines = "".join(f"  {name}: {value};\n" for name, value in found)
    return f"/* From the style sheet of the server's page. */\n:root {{\n{lines}}}\n"
