# SPDX-License-Identifier: Apache-2.0
"""The files of encrypted ports: errors name them, and changed ones are read again."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.serving.server.options.server_options import TlsOptions
from pytriton.serving.server.process import tls as module
from pytriton.serving.server.process.tls import (
    GRPC_PROTOCOLS,
    HTTP_PROTOCOLS,
    TlsFiles,
    TlsPorts,
    check_tls,
    expiry_of,
    load_context,
)
from tests.certificates import DAY, Authority, CertificateFolder
from tests.e2e.waiting import DEADLINE_S


@pytest.fixture
def certificates(tmp_path):
    return CertificateFolder(tmp_path)


def options_for(certificates, **changes):
    files = certificates.server_files
    settings = {"server_cert": str(files["tls_cert"]), "server_key": str(files["tls_key"])}
    return TlsOptions(**settings | changes)


def failure_of(options):
    with pytest.raises(UnavailableError) as caught:
        load_context(options, HTTP_PROTOCOLS)
    return caught.value.message


@pytest.mark.parametrize("member, kind", [("server_cert", "certificate"), ("server_key", "key")])
def test_missing_file_is_named(certificates, tmp_path, member, kind):
    path = str(tmp_path / "no.pem")

    message = failure_of(options_for(certificates, **{member: path}))

    assert kind in message
    assert message.endswith(f"{path}: No such file or directory")


@pytest.mark.parametrize(
    "content, found", [("", "it is empty"), ("nothing", "it has none in PEM format")]
)
@pytest.mark.parametrize("member", ["server_cert", "server_key"])
def test_file_without_pem_is_named(certificates, tmp_path, member, content, found):
    path = tmp_path / "wrong.pem"
    path.write_text(content)

    message = failure_of(options_for(certificates, **{member: str(path)}))

    assert message.endswith(f"{path}: {found}")


def test_key_of_another_certificate_is_named(certificates):
    message = failure_of(options_for(certificates, server_key=str(certificates.client_key)))

    assert message == (
        f"TLS cannot use the key {certificates.client_key}: it does not belong to the certificate "
        f"{certificates.server_files['tls_cert']}"
    )


def test_encrypted_key_is_refused_without_asking_for_its_passphrase(certificates, tmp_path):
    path = tmp_path / "encrypted.key"
    path.write_bytes(certificates.issued.encrypted_key)

    message = failure_of(options_for(certificates, server_key=str(path)))

    assert message == f"TLS needs a private key without a passphrase in {path}: it is encrypted"


def test_damaged_certificate_is_named(certificates, tmp_path):
    path = tmp_path / "damaged.pem"
    path.write_bytes(certificates.issued.certificate.replace(b"M", b"!", 1))

    assert f"TLS cannot use {path} and " in failure_of(
        options_for(certificates, server_cert=str(path))
    )


def test_missing_authorities_are_named(certificates, tmp_path):
    path = str(tmp_path / "no.pem")
    options = options_for(certificates, root_cert=path, client_auth="required")

    assert failure_of(options) == (
        f"TLS needs certificates of authorities in {path}: No such file or directory"
    )


def test_check_looks_at_each_port(certificates):
    check_tls((None, options_for(certificates)))

    with pytest.raises(UnavailableError, match="nowhere"):
        check_tls((options_for(certificates), options_for(certificates, server_cert="nowhere")))


@pytest.mark.parametrize("days", [1, 30, 365 * 30])
def test_expiry_is_that_of_the_first_certificate(tmp_path, days):
    authority = Authority()
    path = tmp_path / "chain.pem"
    path.write_bytes(b"a comment\n" + authority.issue(valid=days * DAY).certificate + authority.pem)

    assert expiry_of(str(path)) == pytest.approx(time.time() + days * 86400, abs=60)


@pytest.mark.parametrize(
    "content", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"]
)
def test_expiry_of_something_else_is_an_error(tmp_path, content):
    path = tmp_path / "wrong.pem"
    path.write_text(content)

    with pytest.raises(ValueError, match="expected a certificate"):
        expiry_of(str(path))


def read(certificates):
    files = TlsFiles(options_for(certificates))
    files.offer(tuple(HTTP_PROTOCOLS))
    return files


def test_files_that_stay_are_not_read_again(certificates):
    files = read(certificates)

    assert [files.look(is_asked=False) for _ in range(3)] == [None] * 3


def test_replaced_files_are_read_once_they_are_settled(certificates):
    files = read(certificates)
    certificates.replace()

    assert files.look(is_asked=False) is None  # the key may not be there yet
    assert not isinstance(files.look(is_asked=False), UnavailableError | None)
    assert files.look(is_asked=False) is None


def test_files_are_read_at_once_if_somebody_asks(certificates):
    assert not isinstance(read(certificates).look(is_asked=True), UnavailableError | None)


def test_replaced_link_counts_as_change(certificates, tmp_path):
    data = tmp_path / "data"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        certificates.authority.issue().write(tmp_path / name, "tls")
    data.symlink_to("first")
    files = TlsFiles(TlsOptions(server_cert=f"{data}/tls.pem", server_key=f"{data}/tls.key"))
    files.offer(tuple(HTTP_PROTOCOLS))
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(data)
    files.look(is_asked=False)

    assert not isinstance(files.look(is_asked=False), UnavailableError | None)


def test_certificate_without_its_key_is_tried_until_it_fits(certificates):
    files = read(certificates)
    issued = certificates.authority.issue()
    certificates.server_files["tls_cert"].write_bytes(issued.certificate)
    files.look(is_asked=False)
    error = files.look(is_asked=False)

    assert isinstance(error, UnavailableError)
    assert "does not belong" in error.message
    assert files.is_news(error)
    assert not files.is_news(error)

    certificates.server_files["tls_key"].write_bytes(issued.key)
    files.look(is_asked=False)

    assert not isinstance(files.look(is_asked=False), UnavailableError | None)


class Ports:
    """`TlsPorts` with a short interval, and waiting for what it does."""

    def __init__(self, loop, monkeypatch):
        monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.01)
        self.ports = TlsPorts(loop)

    async def until(self, condition):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while not condition():
            assert loop.time() < deadline
            await asyncio.sleep(0)


def run(monkeypatch, test):
    async def with_ports():
        rig = Ports(asyncio.get_running_loop(), monkeypatch)
        try:
            await test(rig)
        finally:
            rig.ports.close()

    asyncio.run(with_ports())


def test_ports_use_new_contexts_and_share_files(certificates, monkeypatch, caplog):
    caplog.set_level(logging.INFO)

    async def test(rig):
        options = options_for(certificates)
        ports = [rig.ports.port(options, each) for each in (HTTP_PROTOCOLS, GRPC_PROTOCOLS)]
        before = [port.context for port in ports]
        certificates.replace()
        await rig.until(lambda: rig.ports.reload_count)

        assert all(port.context is not old for port, old in zip(ports, before, strict=True))
        assert len(rig.ports.files) == 1

    run(monkeypatch, test)
    told = [record.message for record in caplog.records if "certificate" in record.message]

    assert told == [
        f"TLS uses the certificate in {certificates.server_files['tls_cert']}, which was read again"
    ]


def test_new_certificate_is_used_while_all_threads_of_others_hang(certificates, monkeypatch):
    go_on = threading.Event()

    async def test(rig):
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hanging = loop.run_in_executor(None, go_on.wait, DEADLINE_S)
        rig.ports.port(options_for(certificates), HTTP_PROTOCOLS)
        certificates.replace()
        try:
            await rig.until(lambda: rig.ports.reload_count)
        finally:
            go_on.set()
            assert await hanging

    run(monkeypatch, test)


def test_broken_file_keeps_the_old_context_and_is_told_once(certificates, monkeypatch, caplog):
    async def test(rig):
        port = rig.ports.port(options_for(certificates), HTTP_PROTOCOLS)
        before = port.context
        certificates.server_files["tls_cert"].write_text("broken")
        await rig.until(lambda: rig.ports.failure_count)
        looks = 0

        def look(*arguments, original=module._look):
            nonlocal looks
            looks += 1
            return original(*arguments)

        monkeypatch.setattr(module, "_look", look)
        await rig.until(lambda: looks > 3)

        assert port.context is before
        assert rig.ports.failure_count == 1

    run(monkeypatch, test)

    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.message == (
        f"TLS needs a certificate in {certificates.server_files['tls_cert']}: it has none in PEM "
        "format; TLS goes on with what it read before"
    )


def test_reload_reads_files_that_look_unchanged(certificates, monkeypatch):
    async def test(rig):
        port = rig.ports.port(options_for(certificates), HTTP_PROTOCOLS)
        before = port.context
        path = certificates.server_files["tls_cert"]
        state = path.stat()
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        rig.ports.reload()
        await rig.until(lambda: rig.ports.reload_count)

        assert port.context is not before

    run(monkeypatch, test)


@pytest.mark.parametrize(
    "valid, expected",
    [
        (8 * DAY, []),
        (6 * DAY, ["the certificate in {} expires within 7 days"]),
        (timedelta(seconds=-60), ["the certificate in {} has expired"]),
    ],
)
def test_certificate_that_expires_is_told_once(tmp_path, monkeypatch, caplog, valid, expected):
    certificates = CertificateFolder(tmp_path)
    certificates.authority.issue(valid=valid).write(tmp_path, "server")

    async def test(rig):
        for protocols in (HTTP_PROTOCOLS, GRPC_PROTOCOLS):
            rig.ports.port(options_for(certificates), protocols)
        rig.ports.reload()
        await rig.until(lambda: rig.ports.reload_count)

    run(monkeypatch, test)
    path = certificates.server_files["tls_cert"]

    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [text.format(path) for text in expected]
