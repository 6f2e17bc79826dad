# SPDX-License-Identifier: Apache-2.0
"""The state of a gRPC call: how much of its life is over, and why it takes no message for now."""

from __future__ import annotations

import enum


class CallState(enum.Enum):
    """The life of a call; `TRANSITIONS` has the steps.

                 the client's               the last
                 last message               response
          ┌──────┐          ┌──────────────┐        ┌───────┐
      ───►│ OPEN ├─────────►│ HALF_CLOSED  ├───────►│ ENDED │
          └─┬──▲─┘          └──────────────┘        └─▲──┬──┘
            │  │    status, reset or lost client      │  │
            └──┼──────────────────────────────────────┘  │
               └─────────────────────────────────────────┘
                 a status waits behind messages that are compressed, and one of them fails:
                 its error becomes the status

    Only a call that answers after its client's last message is HALF_CLOSED: a stream with requests
    in flight. Whatever comes or is to be sent after ENDED is dropped.
    """

    OPEN = enum.auto()
    HALF_CLOSED = enum.auto()
    ENDED = enum.auto()


OPEN, HALF_CLOSED, ENDED = CallState.OPEN, CallState.HALF_CLOSED, CallState.ENDED

TRANSITIONS: dict[CallState, frozenset[CallState]] = {
    OPEN: frozenset({HALF_CLOSED, ENDED}),
    HALF_CLOSED: frozenset({ENDED}),
    ENDED: frozenset({OPEN}),
}


class Wait(enum.IntEnum):
    """Why a call takes no further message; `GrpcCall.waits` is the sum of the reasons.

                     a reason begins
        ┌─────────┐ ─────────────────► ┌─────────┐  what comes is kept in order, and is not
        │ READING │                    │ HOLDING │  acknowledged, so that the window of the
        └─────────┘ ◄───────────────── └─────────┘  stream closes
                     the last one ends: `resume_input` reads what was kept

    ========  ===========================================  =====================================
    reason    begins                                       ends
    ========  ===========================================  =====================================
    WORK      its last message is for a thread or a later  it is processed
              iteration, or its inputs are being read
    TURN      it had its share: others are served          the next turn of its connection
    CLIENT    the client does not read what was sent       it has read most of it
    REQUESTS  as many requests as may be are in flight     one of them has ended
    ANSWERS   responses that wait for earlier ones take    enough of them were sent
              as much memory as they may
    ========  ===========================================  =====================================

    The reasons are independent: each begins and ends whatever the others do.
    """

    WORK = 1
    TURN = 2
    CLIENT = 4
    REQUESTS = 8
    ANSWERS = 16


# Plain numbers: looking up an enum's member takes 0.16 us on Python 3.11.
WORK, TURN, CLIENT = int(Wait.WORK), int(Wait.TURN), int(Wait.CLIENT)
REQUESTS, ANSWERS = int(Wait.REQUESTS), int(Wait.ANSWERS)
