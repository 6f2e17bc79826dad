# SPDX-License-Identifier: Apache-2.0
"""Who may see and do what on the page: both questions go to the server's one authorisation."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.serving.server.api.authorization import (
    Authorization,
    HeaderLookup,
    RestrictedGroup,
    RestrictedProtocol,
)

_PAGE = "page"
REFUSED_TO_ALL = (
    "this needs the page's token, and the server has none: start it with --page-token=<token> or "
    "with the variable PYTRITON_PAGE_TOKEN"
)


class PageAccess:
    """Decides on requests of the page.

    Args:
        groups: The restricted APIs of the HTTP port. They are as restricted here as there.
        token: What the log and all actions need besides; empty: they are refused. It travels in the
            header of the access token, so it opens what that one opens, too.
    """

    def __init__(self, groups: Sequence[RestrictedGroup], token: str) -> None:
        self._apis = Authorization(groups, RestrictedProtocol.HTTP)
        self.has_token = bool(token)
        page = RestrictedGroup(apis=(_PAGE,), header=TRITON_ACCESS_HEADER, value=token)
        self._page = Authorization([page], RestrictedProtocol.HTTP)
        # Others than the page's own, which a user has to give besides.
        others = [group for group in groups if group.header.lower() != TRITON_ACCESS_HEADER]
        self._apis_with_others = Authorization(others, RestrictedProtocol.HTTP)
        self.other_headers = sorted({group.header.lower() for group in others})
        self.headers_of_apis = {api: group.header for group in groups for api in group.apis}

    def refusal(self, api: str, header: HeaderLookup, *, needs_token: bool = False) -> str | None:
        """Decide on one request.

        Args:
            api: Its group, a name in `VALID_TRITON_ENDPOINTS`; empty if it has none.
            header: Looks up the request's headers.
            needs_token: Whether it also needs the page's token.

        Returns:
            The error message; None if the request is allowed.
        """
        refusal = self._page.refusal(_PAGE, header) if self.has_token else REFUSED_TO_ALL
        if needs_token and refusal is not None:
            return refusal
        apis = self._apis if refusal is not None else self._apis_with_others
        return apis.refusal(api, header) if api else None
