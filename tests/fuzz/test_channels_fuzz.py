# SPDX-License-Identifier: Apache-2.0
"""Random messages between processes: a broken one is reported, or ends the connection, and no more.

Records are made from the types of their fields, so that every message of every channel is there,
also one that is added later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import struct
import types
import typing
from typing import Any

import msgspec
import pytest

from pytriton.base.dtypes import UINT8
from pytriton.base.messages import InferTensor
from pytriton.runtime.cluster import messages as cluster
from pytriton.runtime.executor.channel_instance import ChannelInstance
from pytriton.runtime.executor.inference import ModelLabels
from pytriton.runtime.executor.launcher import RunningZygote
from pytriton.runtime.transport import control, frames, zygote
from pytriton.runtime.transport.arena import Arena, MemoryTrimmer
from pytriton.runtime.transport.channel import Received
from pytriton.runtime.transport.link import RecordLink, socket_pair, stream_pair
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.stream_channel import StreamChannel, pack_head
from tests.fakes import inference
from tests.fuzz.fuzzing import Case, fuzz
from tests.fuzz.mutation import encodable, mutate_bytes, mutate_document, random_value

UNIONS: dict[str, Any] = {
    "frames": frames.Frame,
    "control": control.ControlMessage,
    "zygote": zygote.ZygoteMessage,
    "to launcher": cluster.ToLauncher,
    "to server": cluster.ToServer,
}
MAX_RECORD_BYTES = 50_000  # which a socket takes although nobody reads yet
INTEGERS = (0, 0, 1, 1, 1, 2, 3, 4, 8, 100, -1, 2**31, 2**63 - 1, -(2**63))
TEXTS = ("", "a", "x", "m", "text", "\u00e9", "0" * 40)


def sample(source: random.Random, kind: Any) -> Any:  # noqa: PLR0911  one for each kind of type
    """Returns a valid value of a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        required = {each.name for each in msgspec.structs.fields(kind) if each.required}
        names = [name for name in hints if name in kind.__struct_fields__]
        return kind(
            **{
                name: sample(source, hints[name])
                for name in names
                if name in required or source.random() < 0.6
            }
        )
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return sample(source, source.choice(arguments))
    if origin is list:
        return [sample(source, arguments[0]) for _ in range(source.choice((0, 1, 2)))]
    if origin is dict:
        count = source.choice((0, 1, 2))
        return {sample(source, arguments[0]): sample(source, arguments[1]) for _ in range(count)}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(sample(source, arguments[0]) for _ in range(source.choice((0, 1, 2))))
        return tuple(sample(source, each) for each in arguments)
    if kind in (None, type(None)):
        return None
    if kind is Any:
        return random_value(source, 2)
    plain = {
        int: INTEGERS,
        str: TEXTS,
        bytes: (b"", b"ab"),
        bool: (True, False),
        float: (0.5, -1.0),
    }
    return source.choice(plain[kind])


def random_record(source: random.Random, union: Any) -> bytes:
    """An encoded message: valid, with other values, or with other bytes."""
    record = sample(source, source.choice(typing.get_args(union)))
    document = encodable(msgspec.to_builtins(record, builtin_types=(bytes,)))
    kind = source.randrange(5)
    if kind in (2, 3):
        for _ in range(source.choice((1, 1, 3))):
            document = encodable(mutate_document(source, document))
    encoded: bytes = msgspec.msgpack.encode(document)
    if kind == 4:
        for _ in range(source.choice((1, 1, 4))):
            encoded = mutate_bytes(source, encoded)
    if (
        encoded and source.random() < 0.03 and 0x90 <= encoded[0] < 0x9F
    ):  # deeper than a reader follows
        encoded = bytes((encoded[0] + 1,)) + encoded[1:] + b"\x91" * 3000 + b"\x90"
    return encoded[:MAX_RECORD_BYTES]


# Records alone

DECODERS = {
    "frames": frames._decoder,
    "control": control._decoder,
    "zygote": zygote._decoder,
    "to launcher": cluster.TO_LAUNCHER,
    "to server": cluster.TO_SERVER,
}


def check_records(records: Case, name: str) -> None:
    """Assert that what is received is a record, an error of the documented kind, or the end."""
    near, far = stream_pair()
    link: RecordLink[Any] = RecordLink(near, DECODERS[name], 1 << 20)
    far.settimeout(30)
    try:
        for record in records:
            far.sendall(struct.pack("<I", len(record)) + record)
            with contextlib.suppress(ValueError, EOFError):
                assert isinstance(link.receive(), typing.get_args(UNIONS[name]))
        far.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="expected a message of at most"):
            link.receive()
    finally:
        link.close()
        far.close()


@pytest.mark.parametrize("name", UNIONS)
def test_random_records_are_read_or_refused(name):
    fuzz(
        f"records of {name}",
        200,
        lambda source: [random_record(source, UNIONS[name]) for _ in range(4)],
        lambda records: check_records(records, name),
    )


# Channels on an event loop


def random_messages(source: random.Random) -> Case:
    """Messages of a channel, whole or not, with bytes after the record that tensors are in."""
    messages = []
    for _ in range(source.choice((1, 3, 6))):
        record = random_record(source, frames.Frame)
        length = len(record)
        if source.random() < 0.1:
            length = source.choice((0, 1, length + 1, 2**31, 2**32 - 1))
        padding = bytes(-(4 + len(record)) % 16)
        message = struct.pack("<I", length) + record + padding + source.randbytes(32)
        if source.random() < 0.05:
            message = mutate_bytes(source, message)
        if source.random() < 0.05:
            message = message[: source.randrange(1, 6)]
        messages.append(message)
    return messages


class LoopRig:
    """A channel on a loop, with the other end of its socket in the test's hands."""

    def __init__(self, *, is_stream: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.problems: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.trimmer = MemoryTrimmer(self.loop)
        near, self.far = stream_pair() if is_stream else socket_pair()
        self.arena = self.trimmer.arena = Arena()
        self.channel: Any = StreamChannel(near) if is_stream else MemoryChannel(near, self.arena)
        self.heard: list[Received] = []
        self.losses: list[Exception] = []

    def watch(self) -> None:
        LoopChannel(
            self.channel,
            self.loop,
            self.trimmer,
            "peer",
            on_message=self.heard.append,
            on_lost=self.losses.append,
        ).start()

    def send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.far.sendall(message)
        self.turn()

    def turn(self) -> None:
        async def wait() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def close(self) -> None:
        self.trimmer.stop()
        self.channel.close()
        self.far.close()
        self.loop.close()


@pytest.mark.parametrize("is_stream", [False, True], ids=["memory", "stream"])
def test_random_messages_are_heard_or_end_the_channel(is_stream):
    def check(messages: Case) -> None:
        rig = LoopRig(is_stream=is_stream)
        rig.watch()
        try:
            for message in messages:
                if is_stream and len(message) > 4:
                    (length,) = struct.unpack_from("<I", message)
                    body = message[4:]
                    head = pack_head(min(length, 2**32 - 1), max(0, len(body) - length) // 16 * 16)
                    message = head + body  # noqa: PLW2901
                rig.send(message)
            for received in rig.heard:
                read_tensors(received)
            assert len(rig.losses) <= 1
            assert not rig.problems
            if not is_stream:
                rig.channel.tracker.check_integrity()
                rig.channel.link.check_integrity()
        finally:
            rig.close()
        rig.arena.check_integrity()

    fuzz(f"channel {is_stream}", 120, random_messages, check)


def read_tensors(received: Received) -> None:
    """Read all that a frame points to: bytes of the message, or an error of a known kind."""
    found = list(refs_in(received.frame))
    for ref in found:
        with contextlib.suppress(ValueError, KeyError, TypeError, msgspec.MsgspecError):
            assert len(received.buffer(ref)) <= len(received.message)


def refs_in(value: Any) -> Any:
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from refs_in(getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from refs_in(each)


# Answers of an instance

ANSWERS = frames.BatchResult | frames.ResponsesFrame | frames.BatchFailure | frames.MemoryFrame


class InstanceRig(LoopRig):
    """An instance with running batches, and what its owner has heard."""

    costs = None  # of batches: nobody asks for them here

    def __init__(self) -> None:
        super().__init__(is_stream=False)
        self.ends: list[int] = []
        self.died: list[str] = []
        labels = ModelLabels("m", "1", ["x"], batching=True)
        self.instance = ChannelInstance(
            "m_0_0", labels, self.channel, self.trimmer, self.loop, self, 4
        )
        self.instance.start()
        self.requests = []
        for _ in range(3):
            tensor = InferTensor("x", UINT8, (1, 4), bytes(4))
            self.requests.append(inference(inputs={"x": tensor}))
            self.instance.execute([self.requests[-1]], 0)

    def shown(self, error, batch):
        return error

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        for outcome in outcomes:
            if outcome.is_final:
                self.ends.append(id(batch.inferences[outcome.position]))

    def on_burst(self, instance, batch, position, burst, times_ns):
        assert not burst.count < 0

    def on_unavailable(self, instance):
        assert not instance.free_slots

    def on_died(self, instance, reason):
        self.died.append(reason)


def random_answers(source: random.Random) -> Case:
    answers = []
    for _ in range(source.choice((1, 3, 5))):
        record = random_record(source, ANSWERS)
        answers.append(
            struct.pack("<I", len(record)) + record + bytes(-(4 + len(record)) % 16) + bytes(64)
        )
    return answers


def check_answers(answers: Case) -> None:
    """Assert that each request ends once, at the latest when the instance is stopped."""
    rig = InstanceRig()
    try:
        for answer in answers:
            rig.send(answer)
        assert len(rig.died) <= 1
        rig.instance.stop()
        assert not rig.problems
        assert sorted(rig.ends) == sorted(map(id, rig.requests))
        assert len(rig.died) == 1
        assert rig.instance.free_slots == 0
    finally:
        rig.close()
    rig.arena.check_integrity([])


def test_random_answers_end_each_request_once():
    fuzz("answers of an instance", 150, random_answers, check_answers)


# Those who read records of other processes


class FakePeer:
    """A socket whose other end a reader has on a loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.problems: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.near, self.far = stream_pair()

    def turn(self) -> None:
        async def wait() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def close(self) -> None:
        self.far.close()
        self.loop.close()


def check_launcher(records: Case) -> None:
    peer = FakePeer()
    heard: list[Any] = []
    losses: list[bool] = []
    link = cluster.LauncherLink(
        peer.near, peer.loop, cluster.TO_SERVER, heard.append, lambda: losses.append(True)
    )
    link.start()
    try:
        for record in records:
            with contextlib.suppress(OSError):
                peer.far.sendall(struct.pack("<I", len(record)) + record)
            peer.turn()
        assert not peer.problems
        assert len(losses) <= 1
        assert losses or len(heard) == len(records)
    finally:
        link.close()
        peer.close()


def test_random_messages_of_the_launcher_are_heard_or_lose_it():
    fuzz(
        "messages of the launcher",
        100,
        lambda source: [random_record(source, cluster.ToServer) for _ in range(3)],
        check_launcher,
    )


def check_fork_server(records: Case) -> None:
    """Assert that a zygote ends, whatever it is sent; without descriptors, it never forks."""
    near, far = stream_pair()
    handler = signal.getsignal(signal.SIGCHLD)
    server = zygote.ForkServer(zygote.ZygoteLink(near))
    try:
        for record in records:
            far.sendall(struct.pack("<I", len(record)) + record)
        far.shutdown(socket.SHUT_WR)
        assert server.serve() is None
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, handler)
        for sock in (server._wakeup_reader, server._wakeup_writer, near, far):
            sock.close()


def test_random_messages_end_a_zygote():
    fuzz(
        "messages to a zygote",
        100,
        lambda source: [random_record(source, zygote.ZygoteMessage) for _ in range(2)],
        check_fork_server,
    )


def check_zygote(records: Case) -> None:
    """Assert that the server hears what its zygote says, or gives it up."""
    peer = FakePeer()
    running = RunningZygote.__new__(RunningZygote)
    running._loop, running._link, running.is_open = peer.loop, zygote.ZygoteLink(peer.near), True
    running._pending, running._workers = {}, {}
    peer.near.setblocking(False)
    peer.loop.add_reader(peer.near.fileno(), running._on_readable)
    try:
        for record in records:
            with contextlib.suppress(OSError):
                peer.far.sendall(struct.pack("<I", len(record)) + record)
            peer.turn()
        assert not peer.problems
    finally:
        running._on_gone()
        peer.close()


def test_random_messages_of_a_zygote_are_heard_or_lose_it():
    fuzz(
        "messages of a zygote",
        100,
        lambda source: [random_record(source, zygote.ZygoteMessage) for _ in range(3)],
        check_zygote,
    )
