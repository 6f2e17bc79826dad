# SPDX-License-Identifier: Apache-2.0
"""Which pages of other origins may use a server, and under which names browsers may reach it."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.api.origins import BrowserOptions, OriginPolicy
from pytriton.serving.server.options.server_options import AccessOptions, ServerOptions

APP = "https://app.example.com"
FIREFOX = b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def policy(*origins: str, address: str = "0.0.0.0", is_open: bool = False, **more) -> OriginPolicy:
    options = BrowserOptions(allow_origins=origins, **more).parsed()
    return OriginPolicy(address, options, is_open=is_open)


def lookup(**headers: bytes):
    return {name.replace("_", "-").encode(): value for name, value in headers.items()}.get


def lines(text: bytes) -> dict[str, str]:
    assert text.endswith(b"\r\n")
    return dict(line.split(": ", 1) for line in text.decode().splitlines())


# Origins


@pytest.mark.parametrize(
    "allowed, origin",
    [
        (APP, APP),
        ("https://app.example.com:443", APP),
        ("HTTPS://App.Example.com", APP),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://localhost:*", "http://localhost:3000"),
        ("http://localhost:*", "http://localhost"),
        ("http://*.example.com:*", "http://a.example.com:81"),
        ("https://*.example.com", APP),
        ("https://*.example.com", "https://a.b.example.com"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("capacitor://localhost", "capacitor://localhost"),
        ("*", APP),
        ("*", "null"),
        (f"http://other.example, {APP}", APP),
    ],
)
def test_allowed_origin_may_change_state_and_read_answers(allowed, origin):
    found = policy(allowed)
    request = lookup(host=b"h:8000", origin=origin.encode(), sec_fetch_site=b"cross-site")

    assert found.refusal(b"POST", request) is None
    expected = "*" if allowed == "*" else origin
    assert lines(found.answer_headers(request))["Access-Control-Allow-Origin"] == expected


@pytest.mark.parametrize(
    "allowed, origin",
    [
        (APP, "http://app.example.com"),
        (APP, "https://app.example.com:8443"),
        (APP, "https://app.example.com.evil.example"),
        (APP, "null"),
        ("https://*.example.com", "https://example.com"),
        ("https://*.example.com", "https://evilexample.com"),
        ("https://*.example.com", "https://a.example.com:81"),
        ("https://*.example.com", "https://a.example.com.evil.example"),
        ("https://*.example.com", "https://evil.example/.example.com"),
        ("https://*.example.com", "https://*.example.com.evil"),
        ("https://*.example.com", "https://u@a.example.com"),
        ("http://localhost:*", "https://localhost:3000"),
        ("http://localhost:*", "http://localhost:3000, http://evil.example"),
        ("http://localhost:*", "http://localhost.evil.example:1"),
    ],
)
def test_other_origin_is_refused_and_may_read_nothing(allowed, origin):
    found = policy(allowed)
    request = lookup(host=b"h:8000", origin=origin.encode("latin-1"))

    problem = found.refusal(b"POST", request)
    assert problem is not None
    assert "or one of --cors-allow-origins, got Origin" in problem
    assert found.answer_headers(request) == b"Vary: Origin\r\n"


def test_answers_to_programs_only_say_that_they_vary():
    assert policy(APP).answer_headers(lookup(host=b"h")) == b"Vary: Origin\r\n"


def test_page_may_read_the_headers_that_a_client_needs():
    found = lines(policy(APP).answer_headers(lookup(origin=APP.encode())))

    assert found["Vary"] == "Origin"
    assert "Inference-Header-Content-Length" in found["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in found


def test_credentials_are_allowed_to_named_origins_only():
    found = policy(APP, allow_credentials=True)

    answer = lines(found.answer_headers(lookup(origin=APP.encode())))
    assert answer["Access-Control-Allow-Credentials"] == "true"
    assert answer["Access-Control-Allow-Origin"] == APP


def test_without_settings_no_origin_is_allowed():
    found = policy()

    assert not found.has_cors
    assert not found.allows(APP.encode())
    asked = lookup(origin=APP.encode(), access_control_request_method=b"POST")
    assert found.preflight(asked) is None


def test_many_origins_of_strangers_are_not_kept():
    found = policy("https://*.example.com")
    for number in range(1000):
        found.allows(b"https://%d.evil" % number)

    assert len(found._known_origins) <= 64
    assert found.allows(APP.encode())


# Preflights


def preflight(found: OriginPolicy, origin: str = APP, **headers: bytes):
    headers = {"access_control_request_method": b"POST", **headers}
    return found.preflight(lookup(host=b"h", origin=origin.encode(), **headers))


def test_preflight_of_an_allowed_origin_is_answered():
    names = b"content-type,inference-header-content-length, X-Stainless-OS"
    answer = preflight(policy(APP, max_age_s=60), access_control_request_headers=names)

    assert answer.status == 204
    assert lines(answer.headers) == {
        "Access-Control-Allow-Origin": APP,
        "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE",
        "Access-Control-Max-Age": "60",
        "Access-Control-Allow-Headers": "content-type, inference-header-content-length, "
        "x-stainless-os",
        "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, "
        "Access-Control-Request-Private-Network",
    }


def test_preflight_allows_only_the_headers_of_the_settings():
    found = policy(APP, allow_headers=("X-Tenant, x-my-*",), allow_credentials=True)
    names = b"x-tenant,x-my-key,content-type,x-\r\nset-cookie: a"
    answer = lines(preflight(found, access_control_request_headers=names).headers)

    assert answer["Access-Control-Allow-Headers"] == "x-tenant, x-my-key"
    assert answer["Access-Control-Allow-Credentials"] == "true"


def test_preflight_allows_any_header_if_the_settings_do():
    found = policy(APP, allow_headers=("*",))

    answer = lines(preflight(found, access_control_request_headers=b"x-a,bad name,*").headers)
    assert answer["Access-Control-Allow-Headers"] == "x-a"


def test_preflight_of_another_origin_is_refused_with_the_setting():
    answer = preflight(policy(APP), "https://evil.example")

    assert answer.status == 403
    assert answer.message == "Origin 'https://evil.example' is none of --cors-allow-origins"
    assert b"Allow" not in answer.headers


def test_preflight_from_the_internet_to_a_private_network_is_answered():
    asked = {"access_control_request_private_network": b"true"}

    answer = lines(preflight(policy(APP), **asked).headers)
    assert answer["Access-Control-Allow-Private-Network"] == "true"


def test_request_without_a_method_to_ask_for_is_no_preflight():
    assert preflight(policy(APP), access_control_request_method=b"") is None
    assert policy(APP).preflight(lookup(access_control_request_method=b"POST")) is None


def test_headers_of_restricted_apis_may_be_sent():
    options = ServerOptions.from_triton_config(
        {"http_restricted_api": ["inference:X-Secret=s"], "cors_allow_origins": [APP]}
    )
    found = options.origin_policy("0.0.0.0")

    answer = preflight(found, access_control_request_headers=b"x-secret,x-other")
    assert lines(answer.headers)["Access-Control-Allow-Headers"] == "x-secret"


# Settings


@pytest.mark.parametrize(
    "values, problem",
    [
        ({"cors_allow_origins": ["app.example.com"]}, "expected origins such as https://app"),
        ({"cors_allow_origins": ["https://app.example.com/"]}, "without a path, got"),
        ({"cors_allow_origins": ["https://*"]}, "expected origins such as"),
        ({"cors_allow_origins": ["null"]}, "got 'null' (the origin of every sandboxed page)"),
        ({"cors_allow_origins": [""]}, "expected origins such as"),
        ({"cors_allow_headers": ["a b"]}, "expected names of headers such as x-tenant"),
        ({"cors_allow_headers": ["*-a"]}, "expected names of headers such as x-tenant"),
        ({"cors_max_age_secs": -1}, "--cors-max-age-secs"),
        (
            {"cors_allow_origins": ["*"], "cors_allow_credentials": True},
            "--cors-allow-credentials needs origins by name: expected no * in --cors-allow-origins",
        ),
        ({"allowed_hosts": ["models.example.com:8000"]}, "without a port, got 'models.example"),
        ({"allowed_hosts": ["a.*.com"]}, "expected names such as models.example.com"),
    ],
)
def test_wrong_setting_is_refused_at_the_start(values, problem):
    with pytest.raises(PyTritonValidationError) as caught:
        ServerOptions.from_triton_config(values)

    assert problem in str(caught.value)


# Old browsers, which tell no Origin


@pytest.mark.parametrize(
    "kind", [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; b=c", None]
)
@pytest.mark.parametrize("page", [b"http://evil.example/a/b", b"", None])
def test_form_of_another_page_is_refused_without_an_origin(kind, page):
    headers = {"content_type": kind, "referer": page}
    request = lookup(host=b"h:8000", user_agent=FIREFOX, **{k: v for k, v in headers.items() if v})

    assert "pages of another origin are refused" in (policy().refusal(b"POST", request) or "")


@pytest.mark.parametrize(
    "headers",
    [
        {"user_agent": FIREFOX, "referer": b"http://h:8000/page"},
        {"user_agent": FIREFOX, "content_type": b"application/json"},
        {"user_agent": b"curl/8.5.0", "content_type": b"application/x-www-form-urlencoded"},
        {"content_type": b"text/plain"},
    ],
)
def test_own_pages_scripts_and_programs_may_send_forms(headers):
    assert policy().refusal(b"POST", lookup(host=b"h:8000", **headers)) is None


# Names


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize(
    "host",
    [
        *("models.example.com", "MODELS.example.com:8000", "models.example.com.", "a.b.corp.test"),
        *("localhost", "10.1.2.3:8000", "[::1]"),
    ],
)
def test_server_with_allowed_hosts_answers_to_them_and_to_its_own_names(address, host):
    found = policy(address=address, allowed_hosts=("models.example.com", "*.corp.test"))

    assert found.refusal(b"GET", lookup(host=host.encode())) is None


@pytest.mark.parametrize("host", ["evil.example", "corp.test", "xmodels.example.com"])
def test_server_with_allowed_hosts_refuses_other_names(host):
    found = policy(allowed_hosts=("models.example.com", "*.corp.test"))

    assert found.refusal(b"GET", lookup(host=host.encode())) == (
        "this server answers to certain names only: expected localhost, the machine's name, an IP "
        f"address or one of --allowed-hosts as Host, got Host '{host}'"
    )


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_star_as_allowed_host_turns_the_check_off(address):
    found = policy(address=address, is_open=True, allowed_hosts=("*",))

    assert found.refusal(b"GET", lookup(host=b"evil.example", user_agent=FIREFOX)) is None


BROWSERS = [
    {"user_agent": FIREFOX},
    {"user_agent": b"x", "accept_language": b"en"},
    {"user_agent": b"node", "accept_language": b"*"},
    {"user_agent": b"x", "sec_fetch_site": b"same-origin", "sec_fetch_mode": b"cors"},
    {"user_agent": b"x", "origin": b"http://evil.example:8000"},
]


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("headers", BROWSERS)
def test_open_server_refuses_browsers_that_use_a_name_of_the_internet(method, headers):
    found = policy(is_open=True)

    assert found.refusal(method, lookup(host=b"evil.example:8000", **headers)) == (
        "this server has no token, so browsers reach it by its own names only: expected localhost, "
        "the machine's name, an IP address or one of --allowed-hosts as Host, got Host "
        "'evil.example:8000'"
    )


@pytest.mark.parametrize("headers", BROWSERS)
def test_server_with_a_token_answers_browsers_whatever_name_they_use(headers):
    assert policy().refusal(b"GET", lookup(host=b"models.example.com", **headers)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"user_agent": b"curl/8.5.0", "accept": b"*/*"},
        {"user_agent": b"node", "accept_language": b"*", "sec_fetch_mode": b"cors"},
        {"user_agent": b"kube-probe/1.31"},
    ],
)
def test_open_server_answers_programs_whatever_name_they_use(headers):
    found = policy(is_open=True)

    for host in (b"models.example.com", b"svc.namespace.svc.cluster.example"):
        assert found.refusal(b"POST", lookup(host=host, **headers)) is None


@pytest.mark.parametrize(
    "host", ["gpu-box", "models.svc.cluster.local:8000", "a.b.svc", "box.lan", "10.0.0.1"]
)
def test_open_server_answers_browsers_under_names_that_nobody_can_own(host):
    found = policy(is_open=True)

    assert found.refusal(b"GET", lookup(host=host.encode(), user_agent=FIREFOX)) is None


def test_server_is_open_unless_an_api_needs_a_token():
    assert ServerOptions().is_open
    restricted = ServerOptions.from_triton_config({"http_restricted_api": ["health:a=b"]})
    assert not restricted.is_open
    assert not ServerOptions(access=AccessOptions(config="policy.toml")).is_open
