# SPDX-License-Identifier: Apache-2.0
"""OpenAI's routes over a real engine: models, whole answers, streams, embeddings, errors."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging

import numpy as np
import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.base.quotas import PrincipalQuotas, Quota
from pytriton.serving.engine.fairness import ANYBODY
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.api.background import SMALL_BYTES
from pytriton.serving.server.openai.exchanges import ModelRequest
from pytriton.serving.server.options.server_options import ClientLimits
from pytriton.testing import FakeEventLoop
from tests.fake_network import HIGH_WATER_BYTES
from tests.server.http_fakes import get, post
from tests.server.http_models import HeldBackground, ask, text
from tests.server.openai.openai_service import (
    CHAT,
    EMBEDDINGS,
    OPENAI_MODELS,
    OpenAIService,
    chat,
    completion,
    deltas,
    embeddings,
    error,
    events,
    rows,
)


@pytest.fixture
def service():
    return OpenAIService()


@pytest.fixture
def client(service):
    return service.connect()


def answer_of(client):
    (answer,) = client.answers()
    return answer


# Models


def test_models_that_have_opted_in_are_listed(service):
    document = json.loads(ask(service, get(b"/v1/models")).body)

    assert document["object"] == "list"
    assert [each["id"] for each in document["data"]] == ["talk", "vectors", "whole"]
    assert {each["owned_by"] for each in document["data"]} == {"pytriton"}


def test_model_is_described(service):
    answer = ask(service, get(b"/v1/models/talk"))

    assert answer.status == 200
    assert json.loads(answer.body)["id"] == "talk"


@pytest.mark.parametrize("name", [b"nobody", b"double", b"a%2Fb"])
def test_other_models_are_not_found(service, name):
    answer = ask(service, get(b"/v1/models/" + name))

    assert answer.status == 404
    assert error(answer)["code"] == "model_not_found"


@pytest.mark.parametrize(
    "request_bytes",
    [
        get(b"/v1"),
        get(b"/v1/models"),
        get(b"/v1/models/double"),
        chat(),
        post(b"nonsense", EMBEDDINGS),
        get(b"/v1/anything"),
    ],
    ids=itertools.count(),
)
def test_without_a_model_that_has_opted_in_there_are_no_routes(request_bytes):
    answer = ask(OpenAIService(models=False), request_bytes)

    assert answer == ask(OpenAIService(), get(b"/v3/models"))
    assert (answer.status, answer.body) == (404, b'{"error":"Not Found"}')


def test_routes_are_there_as_soon_as_a_model_has_opted_in():
    service = OpenAIService(models=False)
    before = ask(service, get(b"/v1/models")).status
    service._serve("late", "max_batch_size: 1 " + 'parameters { key: "openai" value { '
                   'string_value: "chat" } } input { name: "prompt" data_type: TYPE_STRING dims: 1 '
                   '} output { name: "text" data_type: TYPE_STRING dims: 1 }')  # fmt: skip
    after = ask(service, get(b"/v1/models"))

    assert (before, after.status) == (404, 200)
    assert json.loads(after.body)["data"][0]["id"] == "late"


def test_server_that_exits_says_so_after_its_models_have_ended(service):
    service.engine.refuse()
    for model in service.engine.models():
        model.stop()
    answer = ask(service, chat())

    assert answer.status == 503
    assert error(answer)["message"] == "Server exiting"


# Health


@pytest.mark.parametrize("path", [b"/health", b"/health/ready", b"/ping"])
def test_health_is_answered_where_openais_routes_are(service, path):
    answer = ask(service, get(path))

    assert (answer.status, answer.body) == (200, b"")
    assert ask(OpenAIService(models=False), get(path)).status == 404


def test_version_is_that_of_the_metadata(service):
    version = json.loads(ask(service, get(b"/version")).body)["version"]

    assert version == json.loads(ask(service, get(b"/v2")).body)["version"]


def test_server_that_is_not_ready_says_so_in_openais_form(service, monkeypatch):
    monkeypatch.setattr(service.client, "problem", lambda: "the model 'secret' is not ready")
    answer = ask(service, get(b"/health/ready"))

    assert answer.status == 503
    assert error(answer)["message"] == "the server is not ready"
    assert ask(service, get(b"/health")).status == 200


@pytest.mark.parametrize("path", [b"/health", b"/health/ready", b"/ping"])
def test_server_that_exits_is_not_healthy(service, path):
    service.engine.refuse()

    assert ask(service, get(path)).status == 503


def test_health_needs_what_triton_s_health_needs():
    secret = RestrictedGroup(apis=("health",), header="X-Key", value="sesame")

    assert ask(OpenAIService(http_restricted=(secret,)), get(b"/health")).status == 401


@pytest.mark.parametrize("path", [b"/health/other", b"/ping/", b"/version/1"])
def test_other_paths_beside_health_are_unknown(service, path):
    assert error(ask(service, get(path)))["code"] == "unknown_url"


# Chats and completions


def test_chat_is_answered_as_a_whole(service, client):
    client.send(chat("hello", temperature=0.5))
    for piece in ("one ", "two"):
        service.talk.answer(text(piece), final=False)
    assert client.received == b""
    service.talk.answer()

    answer = answer_of(client)
    document = json.loads(answer.body)
    assert answer.status == 200
    assert document["choices"][0]["message"]["content"] == "one two"
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"] == {"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 2}
    request = service.talk.inferences[0].request
    assert request.fields.parameters == {"temperature": 0.5}
    assert request.fields.id == answer.headers[b"x-request-id"].decode()
    assert document["id"] == request.fields.id.replace("req_", "chatcmpl-")


def test_id_of_the_client_is_kept(service, client):
    head, _, rest = chat().partition(b"\r\n")
    client.send(head + b"\r\nX-Request-Id: mine-7\r\n" + rest)
    service.talk.answer(text("x"))

    answer = answer_of(client)
    assert answer.headers[b"x-request-id"] == b"mine-7"
    assert json.loads(answer.body)["id"] == "chatcmpl-mine-7"


@pytest.mark.parametrize("given", [b"", b"two words", b"x" * 129, b"\xff"])
def test_id_that_cannot_be_sent_back_is_replaced(service, client, given):
    head, _, rest = chat().partition(b"\r\n")
    client.send(head + b"\r\nX-Request-Id: " + given + b"\r\n" + rest)
    service.talk.answer(text("x"))

    assert answer_of(client).headers[b"x-request-id"].startswith(b"req_")


def test_stream_sends_each_response_at_once(service, client):
    client.send(chat(stream=True))
    assert client.received == b""
    service.talk.answer(text("one "), final=False)
    assert b'"content":"one "' in client.received
    service.talk.answer(text("two"))

    answer = answer_of(client)
    assert deltas(answer) == ["", "one ", "two", "stop"]
    assert answer.headers[b"Cache-Control"] == b"no-cache"
    assert answer.headers[b"x-request-id"]


def test_stream_of_a_model_that_says_nothing(service, client):
    client.send(chat(stream=True))
    service.talk.answer()

    assert deltas(answer_of(client)) == ["", "stop"]


def test_stream_ends_with_the_usage_if_it_is_wanted(service, client):
    client.send(chat(stream=True, stream_options={"include_usage": True}))
    service.talk.answer(text("one"))

    *others, last = events(answer_of(client))
    assert [each["usage"] for each in others] == [None, None, None]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 1)


def test_choices_of_a_stream_may_come_in_any_order(service, client):
    client.send(completion(stream=True, n=2))
    service.talk.answer(text("b"), index=1)
    service.talk.answer(text("a"), index=0)

    choices = [event["choices"][0] for event in events(answer_of(client))]
    assert [(each["index"], each["text"], each["finish_reason"]) for each in choices] == [
        (1, "b", None),
        (1, "", "stop"),
        (0, "a", None),
        (0, "", "stop"),
    ]


def test_choices_of_a_whole_answer_are_in_order(service, client):
    client.send(completion(prompt=["x", "y"], echo=True))
    service.talk.answer(text("2"), index=1)
    assert client.received == b""
    service.talk.answer(text("1"), index=0)

    choices = json.loads(answer_of(client).body)["choices"]
    assert [(each["index"], each["text"]) for each in choices] == [(0, "x1"), (1, "y2")]


def test_model_that_answers_at_once_may_be_streamed(service, client):
    client.send(completion(model="whole", stream=True))
    service.instances["whole"].answer(text("all of it"))

    choices = [event["choices"][0]["text"] for event in events(answer_of(client))]
    assert choices == ["all of it", ""]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_answer_and_the_inference(service, client, stream):
    client.send(chat(stream=stream, stop="\n\n") + get(b"/v2/health/live"))
    service.talk.answer(text("one\n"), final=False)
    assert service.talk.cancelled == []
    service.talk.answer(text("\ntwo"), final=False)
    client.loop.run()

    answer, after = client.answers()
    if stream:
        assert deltas(answer) == ["", "one", "stop"]
    else:
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == "one"
    assert service.talk.cancelled == service.talk.inferences
    assert after.status == 200


def test_late_responses_after_the_end_are_ignored(service, client):
    client.send(chat(max_tokens=1) + get(b"/v2/health/live"))
    service.talk.answer(text("one"), final=False)
    service.talk.answer(text("two"), final=False)
    service.talk.fail(InternalError("cancelled"))
    client.loop.run()

    answer, after = client.answers()
    assert json.loads(answer.body)["choices"][0]["finish_reason"] == "length"
    assert after.status == 200


def test_one_choice_that_ends_early_does_not_end_the_others(service, client):
    client.send(completion(n=2, max_tokens=2))
    for index, piece in ((0, "a"), (0, "b"), (1, "c")):
        service.talk.answer(text(piece), final=False, index=index)
    assert service.talk.cancelled == service.talk.inferences[:1]
    service.talk.answer(text("d"), index=1)

    choices = json.loads(answer_of(client).body)["choices"]
    assert [each["text"] for each in choices] == ["ab", "cd"]


# Large bodies, which another process reads

LONG = "x" * SMALL_BYTES


@pytest.mark.parametrize("stream", [False, True])
def test_large_chat_is_answered(service, client, stream):
    client.send(chat(LONG, stream=stream, n=2) + get(b"/v2/health/live"))
    client.loop.run()
    for index in range(2):
        service.talk.answer(text("yes"), index=index)
    client.loop.run()

    answer, after = client.answers()
    assert (answer.status, after.status) == (200, 200)
    assert answer.body.count(b'"content":"yes"') == 2
    requests = [each.request for each in service.talk.inferences]
    assert [each.operation for each in requests] == ["chat", "chat"]
    data = requests[1].inputs["prompt"].data
    assert bytes(data[4:]).decode() == f"User: {LONG}\nAssistant:"


@pytest.mark.parametrize(
    "request_bytes, status, param",
    [
        (chat(LONG, n=0), 400, "n"),
        (chat(LONG, model="nobody"), 404, "model"),
        (chat(LONG, model="vectors"), 404, "model"),
        (chat(LONG, model=""), 400, "model"),
        (post(b" " * (SMALL_BYTES + 1), CHAT), 400, None),
    ],
    ids=itertools.count(),
)
def test_large_wrong_requests_have_openais_errors(service, client, request_bytes, status, param):
    client.send(request_bytes)
    client.loop.run()

    answer = answer_of(client)
    assert (answer.status, error(answer)["param"]) == (status, param)
    assert len(service.engine.failures.listed()) == 1


@pytest.fixture
def held():
    """A service with a real loop whose background waits for the test."""
    loop = FakeEventLoop()
    asyncio.set_event_loop(loop)
    service = OpenAIService(loop=loop, background=HeldBackground())
    yield service
    service.api.close()
    loop.run()
    asyncio.set_event_loop(None)
    loop.close()


def test_others_are_answered_while_a_large_body_is_read(held):
    client = held.connect()
    client.send(chat(LONG))
    held.loop.run()
    other = ask(held, get(b"/v2/health/live"))
    assert held.talk.inferences == []
    held.background.waiting[0].set_result(None)
    held.loop.run()
    held.talk.answer(text("yes"))
    held.loop.run()

    assert other.status == 200
    assert answer_of(client).status == 200


def test_large_body_of_a_client_that_left_is_not_answered(held):
    client = held.connect()
    client.send(chat(LONG))
    held.loop.run()
    client.transport.close()
    held.loop.run()

    assert held.background.waiting[0].cancelled()
    assert held.talk.inferences == []


def test_client_that_leaves_after_its_large_body_cancels_the_inference(service, client):
    client.send(chat(LONG))
    client.loop.run()
    client.reset()

    assert len(service.talk.inferences) == 1
    assert service.talk.cancelled == service.talk.inferences


def test_model_that_changed_while_a_large_body_was_read_may_be_asked_again(held):
    client = held.connect()
    held.engine.lookup("talk", "").stop()
    client.send(chat(LONG))
    held.loop.run()
    held._serve("talk", OPENAI_MODELS["talk"])
    held.background.waiting[0].set_result(None)
    held.loop.run()

    assert answer_of(client).status == 503


def chunked(request_bytes: bytes) -> bytes:
    head, _, content = request_bytes.partition(b"\r\n\r\n")
    lines = [each for each in head.split(b"\r\n") if not each.startswith(b"Content-Length")]
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"])
    return head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)


@pytest.mark.parametrize("send", [bytes, chunked])
def test_body_above_the_limit_is_refused_in_openais_form(send):
    service = OpenAIService(limits=ClientLimits(http_max_input_bytes=1 << 20))
    client = service.connect()
    client.send(send(chat("x" * (1 << 20))))

    (answer,) = client.answers()
    assert answer.status == 413
    found = error(answer)
    assert (found["type"], found["code"]) == ("invalid_request_error", "request_too_large")
    assert found["message"].endswith("Use --http-max-input-size to increase the limit.")
    (group,) = service.engine.failures.listed()
    assert group.record.kind == "Too large"


def test_body_above_the_limit_for_other_paths_is_refused_as_before():
    service = OpenAIService(limits=ClientLimits(http_max_input_bytes=1 << 20))
    answer = ask(service, post(b"x" * ((1 << 20) + 1), b"/v2/models/double/infer"))

    assert answer.status == 400
    assert json.loads(answer.body).keys() == {"error"}


def test_large_body_for_an_unknown_path_is_refused_in_openais_form(service):
    answer = ask(service, post(b"x" * SMALL_BYTES, b"/v1/nonsense"))

    assert (answer.status, error(answer)["code"]) == (404, "unknown_url")


# Clients that go or read slowly


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_goes_away_cancels_all_choices(service, client, stream):
    client.send(completion(stream=stream, n=3))
    service.talk.answer(text("x"), final=False)
    client.reset()

    assert service.talk.cancelled == service.talk.inferences
    assert len(service.talk.cancelled) == 3


def test_slow_reader_pauses_the_model(service, client):
    client.send(chat(stream=True))
    client.transport.peer_reads = False
    for _ in range(3):
        service.talk.answer(text("x" * HIGH_WATER_BYTES), final=False)
        client.loop.run()
    paused = service.talk.inferences[0].is_paused
    granted = service.talk.granted
    client.transport.peer_reads = True
    client.transport.take()
    client.loop.run()

    assert paused
    assert service.talk.granted > granted
    service.talk.answer()
    assert deltas(answer_of(client))[-1] == "stop"


# Embeddings


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_of_several_requests_are_in_order(service, client, encoding):
    client.send(embeddings(input=["a", "b", "c"], encoding_format=encoding))
    vectors = service.instances["vectors"]
    vectors.answer(rows([5, 6]), index=1)
    vectors.answer(rows([1, 2], [3, 4]), index=0)

    document = json.loads(answer_of(client).body)
    found = [each["embedding"] for each in document["data"]]
    if encoding == "base64":
        found = [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in found]
    assert found == [[1, 2], [3, 4], [5, 6]]
    assert [each["index"] for each in document["data"]] == [0, 1, 2]


def test_large_embeddings_are_written_outside_of_the_event_loop(service, client):
    client.send(embeddings())
    service.instances["vectors"].answer(rows([0.5] * 100_000))

    assert service.background.count == 1
    assert len(json.loads(answer_of(client).body)["data"][0]["embedding"]) == 100_000


def test_embeddings_fail_as_a_whole(service, client):
    client.send(embeddings(input=["a", "b", "c"]) + get(b"/v2/health/live"))
    vectors = service.instances["vectors"]
    vectors.answer(rows([1, 2, 3]), index=0)

    answer = client.answers()[0]
    assert answer.status == 500
    assert "expected an embedding for each of 2 text(s)" in error(answer)["message"]
    assert vectors.cancelled == vectors.inferences[1:]


# Errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "failure, status",
    [
        (InternalError("it broke"), 500),
        (UnavailableError("later"), 503),
        (UnavailableError("[request id: x] Exceeds maximum queue size"), 429),
        (InvalidArgumentError("wrong"), 400),
    ],
)
def test_error_before_the_first_response_has_a_status(service, client, stream, failure, status):
    client.send(chat(stream=stream))
    service.talk.fail(failure)

    answer = answer_of(client)
    assert answer.status == status
    assert error(answer)["message"] == failure.message


def test_error_of_one_choice_ends_all(service, client):
    client.send(completion(n=2) + get(b"/v2/health/live"))
    service.talk.answer(text("a"), final=False, index=0)
    service.talk.fail(InternalError("it broke"), index=1)
    client.loop.run()

    answer, after = client.answers()
    assert (answer.status, after.status) == (500, 200)
    assert service.talk.cancelled == service.talk.inferences[:1]


def test_prompts_beyond_a_quota_are_refused_before_one_of_them_runs(service, client):
    limits = PrincipalQuotas(quotas=(Quota(requests_per_s=5, burst=5),))
    service.engine.set_quotas({ANYBODY: limits})
    client.send(completion(prompt=["hi"] * 8))

    answer = answer_of(client)
    assert answer.status == 429
    assert error(answer)["message"].startswith(
        "clients without a principal may have 5 requests per second, 5 at once, and 8 came together"
    )
    assert service.talk.inferences == []
    client.send(completion(prompt=["hi"] * 5))
    assert len(service.talk.inferences) == 5


def test_error_in_a_stream_is_an_event(service, client):
    client.send(chat(stream=True) + get(b"/v2/health/live"))
    service.talk.answer(text("one"), final=False)
    service.talk.fail(InternalError("it broke"))
    client.loop.run()

    answer, after = client.answers()
    *_, last, end = answer.body.split(b"\n\n")
    assert json.loads(last.removeprefix(b"data: "))["error"] == {
        "message": "it broke",
        "type": "server_error",
        "param": None,
        "code": "model_error",
    }
    assert (end, after.status) == (b"", 200)


@pytest.mark.parametrize(
    "request_bytes, status, param",
    [
        (post(b"{", CHAT), 400, None),
        (post(b"{}", CHAT), 400, "model"),
        (chat(model=5), 400, "model"),
        (chat(model="nobody"), 404, "model"),
        (chat(model="double"), 404, "model"),
        (chat(model="whole"), 404, "model"),
        (embeddings(model="talk"), 404, "model"),
        (completion(prompt=[1]), 400, "prompt"),
        (get(CHAT), 405, None),
        (post(b"{}", b"/v1/models"), 405, None),
        (post(b"{}", b"/v1/responses"), 404, None),
        (get(b"/v1"), 404, None),
        (get(b"/v1/models/"), 404, None),
        (completion(model="whole", max_tokens=5), 400, "max_tokens"),
    ],
    ids=itertools.count(),
)
def test_wrong_requests_have_openais_errors(service, request_bytes, status, param):
    answer = ask(service, request_bytes)

    assert answer.status == status
    assert error(answer)["param"] == param


def test_wrong_method_tells_the_right_one(service):
    assert ask(service, get(CHAT)).headers[b"Allow"] == b"POST"


def test_compressed_body_is_refused(service):
    head, _, rest = chat().partition(b"\r\n")
    answer = ask(service, head + b"\r\nContent-Encoding: gzip\r\n" + rest)

    assert error(answer)["message"] == "expected a body without compression, got gzip"


def test_mistake_of_the_server_is_logged_and_not_told(service, client, monkeypatch, caplog):
    monkeypatch.setattr("pytriton.serving.server.openai.api.read_work", lambda *_, **__: 1 / 0)
    with caplog.at_level(logging.ERROR):
        client.send(chat())

    answer = answer_of(client)
    assert answer.status == 500
    assert error(answer)["message"] == "unexpected error in the server, its log says more"
    assert "ZeroDivisionError" in caplog.text


def test_mistake_at_one_choice_cancels_those_before_it(service, client, monkeypatch):
    usual, numbers = ModelRequest.start, itertools.count()

    def start(part, head, request):
        if next(numbers):
            raise ZeroDivisionError
        usual(part, head, request)

    monkeypatch.setattr(ModelRequest, "start", start)
    client.send(completion(n=3))

    assert answer_of(client).status == 500
    assert service.talk.cancelled == service.talk.inferences


# Authorisation

SECRET = RestrictedGroup(apis=("inference",), header="X-Key", value="sesame")
METADATA = RestrictedGroup(apis=("metadata",), header="X-Other", value="open")
REQUESTS = [chat(), completion(), embeddings(), get(b"/v1/unknown")]


def with_header(request_bytes: bytes, line: bytes) -> bytes:
    head, _, rest = request_bytes.partition(b"\r\n")
    return head + b"\r\n" + line + b"\r\n" + rest


@pytest.mark.parametrize("request_bytes", REQUESTS, ids=["chat", "text", "vectors", "unknown"])
@pytest.mark.parametrize(
    "line",
    [
        b"X-A: b",
        b"Authorization: Bearer",
        b"Authorization: Bearer open",
        b"Authorization: sesame",
        b"Authorization: Basic sesame",
        b"X-Key: Bearer sesame",
        b"X-Other: open",
    ],
)
def test_restricted_routes_refuse_requests_without_the_value(request_bytes, line):
    service = OpenAIService(http_restricted=(SECRET, METADATA))
    answer = ask(service, with_header(request_bytes, line))

    assert answer.status == 401
    assert answer.headers[b"WWW-Authenticate"] == b"Bearer"
    found = error(answer)
    assert found["code"] == "invalid_api_key"
    assert "sesame" not in found["message"]
    assert service.talk.inferences == []


@pytest.mark.parametrize("line", [b"Authorization: Bearer sesame", b"authorization: bearer  sesame",
                                  b"X-Key: sesame"])  # fmt: skip
def test_value_may_come_as_a_bearer_token_or_in_its_header(line):
    service = OpenAIService(http_restricted=(SECRET,))
    client = service.connect()
    client.send(with_header(chat(), line))
    service.talk.answer(text("x"))

    assert answer_of(client).status == 200


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/talk"])
def test_models_need_what_metadata_need(path):
    service = OpenAIService(http_restricted=(SECRET, METADATA))
    statuses = [
        ask(service, with_header(get(path), line)).status
        for line in (b"X-A: b", b"Authorization: Bearer sesame", b"Authorization: Bearer open")
    ]

    assert statuses == [401, 401, 200]
    assert ask(OpenAIService(http_restricted=(SECRET,)), get(path)).status == 200


def test_bearer_tokens_open_no_other_routes():
    service = OpenAIService(http_restricted=(SECRET,))
    request_bytes = post(b'{"prompt": "x"}', b"/v2/models/stream/generate")

    answer = ask(service, with_header(request_bytes, b"Authorization: Bearer sesame"))

    assert (answer.status, service.stream.inferences) == (403, [])
