# SPDX-License-Identifier: Apache-2.0
"""Tells in words what happened in a run, and writes the test that keeps a finding from coming back.

Times are seconds since the clients began. Of a run with many calls, those that went well are
counted only.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from tests.simulation.machine import SECOND_NS
from tests.simulation.scenario import USUAL_LENGTH, Result, Scenario
from tests.simulation.shrink import kind_of
from tests.workload.calls import POLITE, Call, End, Port

_FEW_CALLS = 30  # a run with at most these is told call by call
_MOST_FINDINGS = 5
_ABOUT = re.compile(r" \[call (\d+) .*\]$", re.DOTALL)
_CLOCK_TIME = re.compile(r"^(\d+\.\d+): ")
_PORTS = {Port.HTTP: "HTTP", Port.GRPC: "gRPC", Port.METRICS: "the port of metrics"}


def tell(result: Result) -> str:
    """Returns what was served, what clients and faults did, and the findings, in order of time."""
    lines = [_headline(result.scenario), ""]
    before = [text for when_ns, text in result.story if when_ns < result.began_ns]
    started = sum(text.endswith(" started") for text in before)
    lines.append(f"{started} processes start; then nobody uses the server for a while.")
    events = [*_of_machine(result), *_of_clients(result)]
    for when_s, text in sorted(events, key=lambda event: event[0]):
        lines.append(f"{when_s:12.6f} s  {text}")
    lines += ["", f"Found ({len(result.findings)}):"]
    for finding in result.findings[:_MOST_FINDINGS]:
        lines.append(textwrap.indent(_with_time(finding, result.began_ns), "  "))
    if len(result.findings) > _MOST_FINDINGS:
        lines.append(f"  and {len(result.findings) - _MOST_FINDINGS} more")
    return "\n".join(lines)


def _headline(scenario: Scenario) -> str:
    system = (
        "a tritonserver with a model repository"
        if scenario.has_repository
        else ("a program with bound functions and its server")
    )
    words = [f"Seed {scenario.seed} of profile {scenario.profile}: {system}"]
    if scenario.front_ends:
        words.append(f"{scenario.front_ends} front ends in processes of their own")
    if scenario.writes_files:
        words.append("with an access log and traces")
    if scenario.split_share:
        words.append(f"{scenario.split_share:.0%} of what is sent arrives in pieces")
    if scenario.pause_share:
        words.append(f"threads lose their processor before {scenario.pause_share:.1%} of calls")
    counts = (
        f"{_count(len(scenario.clients), 'client')} with {_count(scenario.call_count, 'call')}, "
        f"{_count(len(scenario.faults), 'fault')}"
    )
    return ", ".join(words) + "; " + counts + "."


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _with_time(finding: str, began_ns: int) -> str:
    """A finding with its time after the start of the clients; its call was told before."""

    def shift(found: re.Match[str]) -> str:
        return f"at {float(found[1]) - began_ns / SECOND_NS:.6f} s: "

    return _ABOUT.sub(r" (call \1)", _CLOCK_TIME.sub(shift, finding))


def _of_machine(result: Result) -> Iterator[tuple[float, str]]:
    """What was noted of processes and faults, until the server is stopped."""
    is_stopped = False
    for when_ns, text in result.story:
        if when_ns < result.began_ns:
            continue
        is_stopped |= text == "the server is stopped"
        if is_stopped and text.startswith("process ") and text.endswith(" ended 0"):
            continue
        when_s = (when_ns - result.began_ns) / SECOND_NS
        if text.startswith("fault at "):  # the time stands before it already
            yield when_s, f"FAULT: {text.split(': ', 1)[1]}"
        else:
            yield when_s, text
    yield (result.ended_ns - result.began_ns) / SECOND_NS, "all clients have ended"


def _of_clients(result: Result) -> Iterator[tuple[float, str]]:
    began_s = result.began_ns / SECOND_NS
    tells_all = result.scenario.call_count <= _FEW_CALLS
    left_out = 0
    for client in result.scenario.clients:
        for call in client.calls:
            outcome = call.outcome
            if not tells_all and outcome.end is End.ANSWERED and call.conduct is POLITE:
                left_out += 1
                continue
            begin_s = outcome.began_s if outcome.began_s is not None else outcome.submitted_s
            if begin_s is None:
                yield 0.0, f"client {client.number} never sends call {call.number}"
                continue
            version = "/2" if client.is_http2 else ""
            yield begin_s - began_s, f"client {client.number} sends {_describe(call, version)}"
            if outcome.ended_s is None:
                yield result.ended_ns / SECOND_NS - began_s, f"call {call.number} has not ended"
            else:
                yield outcome.ended_s - began_s, f"call {call.number} ends: {_describe_end(call)}"
    if left_out:
        yield 0.0, f"{left_out} calls of polite clients, which were answered, are not told"


def _describe(call: Call, version: str = "") -> str:
    words = [f"call {call.number} over {_PORTS[call.port]}{version}: {call.kind.value}"]
    if call.model:
        words.append(f"of '{call.model}'")
    if call.sequence is not None:
        step = call.sequence
        flags = ", start" * step.is_start + ", end" * step.is_end
        words.append(f"(step {step.index} of sequence {step.id}{flags})")
    if call.stream_length != 1:
        words.append(f"({call.stream_length} responses)")
    if call.lane is not None:
        words.append(f"on stream {call.lane}")
    if call.work_s:
        words.append(f"that takes {call.work_s:.6f} s")
    if call.deadline_s is not None:
        words.append(f"with a deadline of {call.deadline_s:.6f} s")
    if call.timeout_us:
        words.append(f"with a queue timeout of {call.timeout_us} µs")
    conduct = _describe_conduct(call)
    return " ".join(words) + (f"; {conduct}" if conduct else "")


def _describe_conduct(call: Call) -> str:
    conduct = call.conduct
    how = {"close": "closes", "abort": "resets", "half": "half-closes"}[conduct.cut.value]
    words = []
    if conduct.piece_bytes:
        words.append(
            f"sends pieces of {conduct.piece_bytes} bytes every {conduct.piece_pause_s:.6f} s"
        )
    if conduct.cancel_after_s is not None:
        words.append(f"cancels after {conduct.cancel_after_s:.6f} s")
    if conduct.cut_after_sent_bytes is not None:
        words.append(f"{how} its connection after {conduct.cut_after_sent_bytes} bytes sent")
    if conduct.cut_after_received_bytes is not None:
        received = conduct.cut_after_received_bytes
        words.append(f"{how} its connection after {received} bytes received")
    if conduct.read_pause_after_bytes is not None:
        words.append(
            f"does not read for {conduct.read_pause_s:.6f} s after "
            f"{conduct.read_pause_after_bytes} bytes"
        )
    return ", ".join(words)


def _describe_end(call: Call) -> str:
    outcome = call.outcome
    assert outcome.end is not None
    words = [outcome.end.value]
    if outcome.status is not None:
        words.append(f"status {outcome.status}")
    if outcome.responses:
        words.append(_count(len(outcome.responses), "response"))
    if outcome.error:
        words.append(repr(outcome.error[:160]))
    return ", ".join(words)


def regression_test(result: Result) -> str:
    """Returns a test for `test_regressions.py`, which fails as long as the run has findings."""
    scenario = result.scenario
    kind = kind_of(result.findings[0]) if result.findings else "no finding"
    words = re.sub(r"[^a-z]+", "_", re.sub(r"\bN\b", "", kind).lower()).strip("_")
    name = "_".join(words.split("_")[:8])
    arguments = [f'"{scenario.profile}"', str(scenario.seed), repr(scenario.kept)]
    if scenario.length != USUAL_LENGTH:
        arguments.append(f"length={scenario.length!r}")
    arguments += [f"calls={scenario.call_count}", f'plan="{scenario.fingerprint}"']
    body = "".join(
        line + "\n"
        for argument in arguments
        for line in textwrap.wrap(
            argument + ",",
            96,
            initial_indent="        ",
            subsequent_indent="            ",
            break_long_words=False,
        )
    )
    lines = textwrap.wrap(f"Found: {kind}.", 92)
    comment = "".join(f"    # {line}\n" for line in lines)
    return (
        f"def test_{scenario.profile}_{scenario.seed}_{name}(check_seed):\n"
        f"{comment}    check_seed(\n{body}    )\n"
    )
