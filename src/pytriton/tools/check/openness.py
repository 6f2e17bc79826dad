# SPDX-License-Identifier: Apache-2.0
"""`pytriton check --secure`: asks a running server, as a stranger would, what it lets strangers do.

Nothing is sent that would change a server: what loads or runs a model names one that does not
exist, so that only the kind of refusal tells whether a stranger gets that far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http
import http.client
import json
import re
import socket
import ssl
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import grpc

from pytriton.base.protos import service_pb2
from pytriton.base.sandbox import missing_parts
from pytriton.client.kserve.address import Address, Tls, parse_address
from pytriton.runtime.sandbox.probe import probe
from pytriton.tools.check.report import CheckReport, Finding, State
from pytriton.tools.commands.own_server import ask_own_server

if TYPE_CHECKING:
    from google.protobuf.message import Message

_TIMEOUT_S = 5.0
_DAY_S = 86_400
_SOON_DAYS = 14  # a certificate that expires within this time is told of
_FOREIGN = "attacker.example"  # a name that nobody owns (RFC 2606)
_SERVICE = "/inference.GRPCInferenceService"
_NEEDS_CERTIFICATE = "a certificate of the client is needed"
_NO_ANSWER = "no answer"
_REFUSED = frozenset(
    {401, 403, 421, 429, "UNAUTHENTICATED", "PERMISSION_DENIED", _NEEDS_CERTIFICATE}
)
_NOT_SERVED = frozenset({404, 405, 501, "UNIMPLEMENTED"})
# Servers that load models for nobody say so before they look for the model.
_NO_CONTROL = re.compile(r"not allowed in model control mode|polling is enabled", re.IGNORECASE)
_RESTRICTED = re.compile(r"is restricted, expecting", re.IGNORECASE)
# A policy says so to who has the right to other models, as its anonymous principal may have.
_SOME_MODELS = re.compile(r"has no right to \S+ of the model ")
_POLICY = "give each client its rights with --auth-config"


class Targets(NamedTuple):
    """The ports of a server; None: it is not asked."""

    http: Address | None
    grpc: Address | None
    metrics: Address | None
    ca_file: str | None = None  # certificates to trust; None: those of the system
    hides_exceptions: bool | None = None  # None: only a server of this user tells that


class Attempt(NamedTuple):
    """One thing that a stranger may try."""

    name: str
    what: str  # a stranger can do, if it is answered
    path: str
    body: bytes | None = None  # None: GET
    if_open: State = State.FAILED
    remedy: str = _POLICY


class AttemptAnswer(NamedTuple):
    """What came back: a status of HTTP, the name of a gRPC code, or why there is none."""

    status: int | str
    text: str
    headers: Mapping[str, str] = {}


def find_targets(
    url: str, grpc_url: str | None, metrics_url: str | None, ca_file: str | None
) -> Targets:
    """Returns the ports to ask; a server of this user tells those that are not named.

    Raises:
        AddressError: An address is malformed.
    """
    first = parse_address(url, "http")
    own = ask_own_server(first)
    ports = own.ports if own is not None else (first.port, first.port + 1, first.port + 2)

    def find(url: str | None, protocol: str, port: int) -> Address | None:
        if url:
            return parse_address(url, protocol)
        return Address(protocol, first.uses_tls, first.host, port) if port else None

    return Targets(
        first,
        find(grpc_url, "grpc", ports[1]),
        find(metrics_url, "http", ports[2]),
        ca_file,
        None if own is None else own.hides_exceptions,
    )


def _unknown_model() -> str:
    return f"pytriton-check-{uuid.uuid4().hex[:12]}"


def http_questions(model: str) -> list[Attempt]:
    """Returns what a stranger may try at the port of HTTP."""
    load = f"/v2/repository/models/{model}/load"
    register = f"/v2/systemsharedmemory/region/{model}/register"
    region = json.dumps({"key": f"/{model}", "byte_size": 1}).encode()
    return [
        Attempt("inference", "run models", f"/v2/models/{model}/infer", b'{"inputs":[]}'),
        Attempt("model-repository", "load models, which is to run code", load, b"{}"),
        Attempt("model-repository index", "list the models", "/v2/repository/index", b"{}"),
        Attempt("shared-memory", "register shared memory", register, region),
        Attempt("logging", "read and change the log's settings", "/v2/logging"),
        Attempt("trace", "read and change what is traced", "/v2/trace/setting"),
        Attempt("statistics", "see what is asked how often", "/v2/models/stats"),
        Attempt("metadata", "see the server's name and version", "/v2", None, State.NOTE),
        Attempt("recording", "record what other clients send", "/v2/recording"),
        Attempt("OpenAI's routes", "list and run models", "/v1/models"),
        Attempt(
            "health", "see whether the server is ready", "/v2/health/ready", None, State.NOTE,
            "probes need that, and the anonymous principal of a policy may have this right alone",
        ),
    ]  # fmt: skip


def metrics_questions() -> list[Attempt]:
    """Returns what a stranger may try at the port of metrics and of the page."""
    inside = "let it listen inside of your network only (--metrics-address), or " + _POLICY
    return [
        Attempt("metrics", "read the metrics", "/metrics", None, State.NOTE, inside),
        Attempt(
            "page", "see on the page what models do", "/page/api/now", None, State.NOTE,
            f"--allow-page=false, or {inside}",
        ),
    ]  # fmt: skip


def judge(question: Attempt, answer: AttemptAnswer) -> Finding:
    """Returns what an answer to a stranger means."""
    status, text = answer.status, answer.text
    if _SOME_MODELS.search(text):
        reach = f"anybody who reaches this port can {question.what}, of some models ({status})"
        remedy = "take this right from the anonymous principal of the policy"
        return Finding(question.name, f"{reach}; {remedy}", question.if_open)
    if status in _REFUSED or _RESTRICTED.search(text):
        return Finding(question.name, f"refused ({status})", State.OK)
    if _NO_CONTROL.search(text):
        return Finding(question.name, "clients cannot load models (model control mode)", State.OK)
    if status == _NO_ANSWER:
        return Finding(question.name, f"no answer: {text}", State.NOTE)
    # A model that is not found was looked for.
    if status in _NOT_SERVED and "model" not in text.lower():
        return Finding(question.name, f"not served ({status})", State.OK)
    reach = f"anybody who reaches this port can {question.what} ({status})"
    return Finding(question.name, f"{reach}; {question.remedy}", question.if_open)


def check_openness(targets: Targets, report: CheckReport) -> None:
    """Report what is open to strangers at the ports of a server, and what this machine lacks."""
    ports = (
        ("HTTP", targets.http, _http_findings),
        ("metrics", targets.metrics, _metrics_findings),
        ("gRPC", targets.grpc, _grpc_findings),
    )
    for name, address, findings in ports:
        if address is None:
            continue
        report.begin(f"Asking the port of {name}, {address.host_and_port}, without a credential")
        problem = _unreachable(address)
        if problem is not None:
            report.add(Finding("port", f"nobody listens there: {problem}", State.NOTE))
            continue
        asked = dataclasses.replace(address, uses_tls=_speaks_tls(address))
        for look in (_encryption_findings, findings):
            for finding in look(asked, targets.ca_file):
                report.add(finding)
    if targets.hides_exceptions is not None:
        report.begin("Asking your own server for its settings")
        report.add(exceptions_finding(hides=targets.hides_exceptions))
    report.begin("Looking for what sandboxes of models need on this machine")
    missing = missing_parts(probe())
    if not any(part.is_essential for part in missing):
        report.add(Finding("--sandbox=strict", "works here", State.OK))
    for part in missing:
        report.add(Finding(f"without {part.name}", part.consequence, State.NOTE))


def exceptions_finding(*, hides: bool) -> Finding:
    """Returns what clients get of exceptions that models raise."""
    if hides:
        return Finding("exceptions of models", "their texts are in the log only", State.OK)
    text = "clients get their texts, which may have values and paths; use --hide-exceptions"
    return Finding("exceptions of models", text, State.NOTE)


# Encryption


def _unreachable(address: Address) -> str | None:
    try:
        socket.create_connection((address.host, address.port), _TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _speaks_tls(address: Address) -> bool:
    with contextlib.suppress(OSError), _handshake(address, _trusting_context()):
        return True
    return False


def _encryption_findings(address: Address, ca_file: str | None) -> Iterator[Finding]:
    if not address.uses_tls:
        text = "none: whoever is on the way reads and changes what is sent; use --tls-cert"
        # Nobody is on the way between two programs of one machine.
        yield Finding("encryption", text, State.NOTE if _is_local(address) else State.FAILED)
        return
    yield from _certificate_findings(address, ca_file)
    with contextlib.suppress(OSError), _handshake(address, _old_context()) as sock:
        text = f"{sock.version()} is accepted, which is broken; use --tls-min-version=1.2"
        yield Finding("encryption", text, State.FAILED)
        return
    yield Finding("encryption", "TLS 1.2 or newer", State.OK)


def _certificate_findings(address: Address, ca_file: str | None) -> Iterator[Finding]:
    context = ssl.create_default_context(cafile=ca_file)
    try:
        with _handshake(address, context) as sock:
            certificate = sock.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        text = f"clients that check it refuse it: {error.verify_message}"
        hint = "" if ca_file else "; if your own authority has signed it, use --ca-file"
        yield Finding("certificate", text + hint, State.FAILED)
        return
    except OSError as error:
        yield Finding("certificate", f"the handshake failed: {error}", State.NOTE)
        return
    ends_s = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    days = (ends_s - time.time()) / _DAY_S
    state = State.NOTE if days < _SOON_DAYS else State.OK
    yield Finding("certificate", f"valid for {days:.0f} more days", state)


@contextlib.contextmanager
def _handshake(address: Address, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    place = (address.host, address.port)
    with (
        socket.create_connection(place, _TIMEOUT_S) as sock,
        context.wrap_socket(sock, server_hostname=address.host) as encrypted,
    ):
        yield encrypted


def _trusting_context() -> ssl.SSLContext:
    """Returns a context for any certificate: nothing that is sent here is secret."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _old_context() -> ssl.SSLContext:
    context = _trusting_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():  # these versions are what is looked for
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def _is_local(address: Address) -> bool:
    return address.host in ("localhost", "127.0.0.1", "::1")


# HTTP


def _http_findings(address: Address, _ca_file: str | None) -> Iterator[Finding]:
    for question in http_questions(_unknown_model()):
        yield judge(question, _ask(address, question.path, question.body))
    yield from _browser_findings(address)


def _metrics_findings(address: Address, _ca_file: str | None) -> Iterator[Finding]:
    for question in metrics_questions():
        yield judge(question, _ask(address, question.path, question.body))


def _browser_findings(address: Address) -> Iterator[Finding]:
    origin = {"Origin": f"https://{_FOREIGN}"}
    index = "/v2/repository/index"
    crossing = _ask(address, index, b"{}", {**origin, "Content-Type": "text/plain"})
    if crossing.status in _REFUSED:
        yield Finding("pages of other sites", "refused", State.OK)
    else:
        text = f"a browser of your network sends their requests here ({crossing.status})"
        yield Finding("pages of other sites", text, State.FAILED)
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    allowed = _ask(address, index, None, preflight, "OPTIONS").headers
    if allowed.get("access-control-allow-origin") in ("*", origin["Origin"]):
        text = "every site may read answers with a browser; name yours in --cors-allow-origins"
        yield Finding("CORS", text, State.FAILED)
    else:
        yield Finding("CORS", "foreign sites may read nothing", State.OK)
    renamed = _ask(address, "/v2", None, {"Host": f"{_FOREIGN}:{address.port}", **origin})
    if renamed.status == http.HTTPStatus.OK:
        text = (
            "a site whose name leads here (DNS rebinding) may read answers with a browser; "
            "name your hosts in --allowed-hosts"
        )
        yield Finding("names of other hosts", text, State.FAILED)
    else:
        yield Finding("names of other hosts", f"refused ({renamed.status})", State.OK)


def _ask(
    address: Address,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str] = {},
    method: str = "",
) -> AttemptAnswer:
    place = (address.host, address.port)
    connection = (
        http.client.HTTPSConnection(*place, timeout=_TIMEOUT_S, context=_trusting_context())
        if address.uses_tls
        else http.client.HTTPConnection(*place, timeout=_TIMEOUT_S)
    )
    with contextlib.closing(connection):
        try:
            verb = method or ("GET" if body is None else "POST")
            connection.request(verb, address.path + path, body, dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return AttemptAnswer(response.status, response.read().decode("utf-8", "replace"), found)
        except ssl.SSLError as error:
            # Mutual TLS: the handshake ends without a certificate of ours.
            return AttemptAnswer(_NEEDS_CERTIFICATE, str(error))
        except (OSError, http.client.HTTPException) as error:
            return AttemptAnswer(_NO_ANSWER, str(error))


# gRPC


def _grpc_findings(address: Address, ca_file: str | None) -> Iterator[Finding]:
    model = _unknown_model()
    region = service_pb2.SystemSharedMemoryRegisterRequest(name=model, key=f"/{model}", byte_size=1)
    calls = {
        "inference": ("ModelInfer", service_pb2.ModelInferRequest(model_name=model)),
        "model-repository": (
            "RepositoryModelLoad",
            service_pb2.RepositoryModelLoadRequest(model_name=model),
        ),
        "model-repository index": ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
        "shared-memory": ("SystemSharedMemoryRegister", region),
        "logging": ("LogSettings", service_pb2.LogSettingsRequest()),
        "trace": ("TraceSetting", service_pb2.TraceSettingRequest()),
        "statistics": ("ModelStatistics", service_pb2.ModelStatisticsRequest()),
        "metadata": ("ServerMetadata", service_pb2.ServerMetadataRequest()),
        "health": ("ServerReady", service_pb2.ServerReadyRequest()),
    }
    questions = {question.name: question for question in http_questions(model)}
    with contextlib.closing(_channel(address, ca_file)) as channel:
        for name, (method, request) in calls.items():
            yield judge(questions[name], _call(channel, method, request))


def _channel(address: Address, ca_file: str | None) -> grpc.Channel:
    if not address.uses_tls:
        return grpc.insecure_channel(address.host_and_port)
    files = Tls(ca_file=ca_file).grpc_files()
    return grpc.secure_channel(address.host_and_port, grpc.ssl_channel_credentials(**files))


def _call(channel: grpc.Channel, method: str, request: Message) -> AttemptAnswer:
    call = channel.unary_unary(
        f"{_SERVICE}/{method}", request_serializer=lambda message: message.SerializeToString()
    )
    try:
        call(request, timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        code, text = error.code().name, error.details() or ""
        if code == "UNAVAILABLE" and not _RESTRICTED.search(text):
            code = _NO_ANSWER  # a handshake that failed, for example
        return AttemptAnswer(code, text)
    return AttemptAnswer("OK", "")
