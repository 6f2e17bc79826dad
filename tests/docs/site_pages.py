# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of a built site: what each loads, where its links lead, its anchors."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

ASSETS = {"img": "src", "script": "src", "source": "src", "iframe": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest"}


@dataclass
class SitePage:
    """One page: the addresses that a browser loads with it, its links and its anchors."""

    path: pathlib.Path
    assets: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self, page: SitePage) -> None:
        super().__init__()
        self._page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._page.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self._page.links.append(values["href"])
        elif tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self._page.assets.append(values["href"])
        elif ASSETS.get(tag) in values:
            self._page.assets.append(values[ASSETS[tag]])


def read_site(site: pathlib.Path) -> dict[pathlib.Path, SitePage]:
    """All pages of a site by their path."""
    pages: dict[pathlib.Path, SitePage] = {}
    for path in sorted(site.rglob("*.html")):
        page = SitePage(path)
        _Reader(page).feed(path.read_text(encoding="utf-8"))
        pages[path] = page
    return pages


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc) or address.startswith("//")


def broken_links(site: pathlib.Path, pages: dict[pathlib.Path, SitePage]) -> list[str]:
    """The links and assets inside the site that lead nowhere, each with its page."""
    broken = []
    for page in pages.values():
        for address in (*page.links, *page.assets):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = _file_of(site, page.path, unquote(parts.path))
            anchor = unquote(parts.fragment)
            found = target.is_file()
            if found and anchor and target in pages:
                # "__" begins the switches of the theme, "#" alone is the top of the page
                found = anchor in pages[target].anchors or anchor.startswith("__")
            if not found:
                broken.append(f"{page.path.relative_to(site)}: {address}")
    return broken


def _file_of(site: pathlib.Path, page: pathlib.Path, path: str) -> pathlib.Path:
    if not path:
        return page
    target = (site / path[1:] if path.startswith("/") else page.parent / path).resolve()
    return target / "index.html" if target.is_dir() else target
