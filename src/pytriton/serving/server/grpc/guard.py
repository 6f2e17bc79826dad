# SPDX-License-Identifier: Apache-2.0
"""Decides on calls by the policy of a server: on their heads, and on the models in their messages.

The name of a model comes with a message, when the head of its call was allowed already. Servers
without a policy have nothing of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.serving.server.access.decisions import Denial, Scope
from pytriton.serving.server.api.refusals import INFERENCE, ForbiddenError
from pytriton.serving.server.grpc.call import header_of
from pytriton.serving.server.grpc.infer import CallDeniedError

if TYPE_CHECKING:
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.server.access.control import AccessControl
    from pytriton.serving.server.api.authorization import Authorization
    from pytriton.serving.server.grpc.call import GrpcCall


class CallGuard:
    """Decides on the senders of calls, and on the models that their messages name."""

    def __init__(self, authorization: Authorization, access: AccessControl) -> None:
        self._authorization = authorization
        self.access = access

    def denial(self, connection: Any, head: CallHead, api: str) -> Denial | None:
        """Returns why a call with a head is refused; what is found out is kept in the head."""
        if self.knows(connection, head):
            return None
        scope = Scope.BY_BODY if api == INFERENCE else Scope.NONE
        found = self._authorization.decide(api, scope, header_of(head), connection)
        if isinstance(found, Denial):
            head.grant = None
            head.principal = "" if found.grant is None else found.grant.name
            return found
        assert found is not None, "a policy knows the sender of each call"
        head.grant, head.principal = found, found.name
        return None

    def knows(self, connection: Any, head: CallHead) -> bool:
        """Returns whether what a head was allowed is still true."""
        return head.grant is not None and self.access.is_current(head.grant, connection)

    def allows(self, connection: Any, head: CallHead, model: str) -> bool:
        """Returns whether it is known that the sender of a call may use a model."""
        return self.knows(connection, head) and bool(head.grant.principal.may_use(model))

    def check_sender(self, connection: Any, head: CallHead, api: str = INFERENCE) -> None:
        """Raise CallDeniedError if the sender of a call has lost its rights since it began."""
        denial = self.denial(connection, head, api)
        if denial is not None:
            raise CallDeniedError(denial)

    def check(self, connection: Any, head: CallHead, api: str, model: str | Scope) -> None:
        """Raise CallDeniedError if a call may not do something with a model."""
        self.check_sender(connection, head, api)
        denial = self.access.refusal(head.grant, api, model)
        if denial is not None:
            raise CallDeniedError(denial, model if isinstance(model, str) else "")

    def check_use(self, connection: Any, head: CallHead, model: str) -> bool:
        """Returns that a call may use a model, whose request is large; otherwise ends it unread."""
        self.check(connection, head, INFERENCE, model)
        return True

    def may_use(self, connection: Any, head: CallHead, model: str) -> bool:
        """Returns whether a stream may use a model; if not, only that request is refused."""
        self.check_sender(connection, head)
        return self.access.refusal(head.grant, INFERENCE, model, is_counted=False) is None

    def check_streamed(self, connection: Any, head: CallHead, model: str) -> None:
        """Check one of the requests of a stream.

        Raises:
            CallDeniedError: The sender has no rights any more, so that its stream ends.
            ForbiddenError: It has no right to this model; its other requests go on.
        """
        self.check_sender(connection, head)
        denial = self.access.refusal(head.grant, INFERENCE, model)
        if denial is not None:
            raise ForbiddenError(denial.message)

    def end_outdated(self, connection: Any, call: GrpcCall, api: str) -> None:
        """End a stream whose sender has lost its rights."""
        try:
            self.check_sender(connection, call.head, api)
        except CallDeniedError as error:
            connection.fail_call(call, error)
