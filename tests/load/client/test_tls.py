"""https, against a server with a certificate of its own that is good for nothing else."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from load_child import Child, plan, request
from scripted_answers import Script, answer

from dstune.measure.sample import Sample, SampleError, Status

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUFYOMacaC/z90R8fx9m3cDt+mI98wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTIwMTAyNTAxMFoYDzIxMjYxMTA3
MDI1MDEwWjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQ4TUGafFmjeU29Pdl3/SbZ4SxEZsKSKv95Uj2Xtck/Vx7rsm0ju1GS
6oESfoNvk9nvCUsoPSHTJn8eKa7nk8pFo2QwYjAdBgNVHQ4EFgQU62uDJuvqY/rB
JKpwKC47cmrQpVkwHwYDVR0jBBgwFoAU62uDJuvqY/rBJKpwKC47cmrQpVkwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDm2ynwYd3X0tF2T4taTHhhrk5aAUO6p1PGUtToZdFC3AIhAMIJ7XYf3NvwwFR6
LdoiZ83kTSntkt2H9ZHP7wqnexNi
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQge0yDiWw7jlxNtVV4
RjClyh5e+HpLyeQFVC8HOU6UpluhRANCAAQ4TUGafFmjeU29Pdl3/SbZ4SxEZsKS
Kv95Uj2Xtck/Vx7rsm0ju1GS6oESfoNvk9nvCUsoPSHTJn8eKa7nk8pF
-----END PRIVATE KEY-----
"""
TOKENS = 6


def serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve_one, args=(plain, context), daemon=True).start()


def serve_one(plain: socket.socket, context: ssl.SSLContext) -> None:
    """Answers requests on one connection; the path says how an answer ends."""
    try:
        with context.wrap_socket(plain, server_side=True) as sock:
            while head := sock.recv(1 << 16):
                begun = time.monotonic()
                for at_ns, data in answer(Script(tokens=TOKENS, has_usage=True)).steps:
                    time.sleep(max(0.0, at_ns / 1e9 - (time.monotonic() - begun)))
                    sock.sendall(data)
                    if b"/torn" in head:
                        return
    except OSError:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    (folder / "certificate.pem").write_text(CERTIFICATE)
    (folder / "key.pem").write_text(KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener, context), daemon=True).start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def trusting(folder: Path, url: str) -> Iterator[Child]:
    """A load process that trusts the certificate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "certificate.pem"))
        child = Child(folder)
    yield child
    child.close()


def one(child: Child, url: str, path: str = "/v1/completions", **given: float) -> Sample:
    (sample,) = child.run(plan(url, [request()], path=path, **given)).samples
    return sample


def test_an_answer_over_tls_is_read_and_stamped(trusting: Child, url: str) -> None:
    for _ in range(3):  # the connection is kept between requests of a run only
        sample = one(trusting, url)
        assert (sample.status, sample.output_tokens) == (Status.OK, TOKENS)
        assert sample.first_token_ns is not None and sample.last_token_ns is not None
        assert sample.first_token_ns - sample.intended_ns >= 49_000_000
        assert sample.last_token_ns - sample.first_token_ns >= 45_000_000
        assert sample.chunk_offsets_ns == sorted(set(sample.chunk_offsets_ns))


def test_connections_over_tls_are_kept(trusting: Child, url: str) -> None:
    result = trusting.run(plan(url, [request(i) for i in range(4)], concurrency=1))
    assert [sample.status for sample in result.samples] == [Status.OK] * 4


def test_an_answer_over_tls_that_is_torn(trusting: Child, url: str) -> None:
    sample = one(trusting, url, "/torn")
    assert (sample.status, sample.error) == (Status.FAILED, SampleError.RESET)
    assert sample.output_tokens == 1


def test_a_certificate_that_nobody_knows_is_no_connection(client: Child, url: str) -> None:
    sample = one(client, url)
    assert (sample.status, sample.error) == (Status.FAILED, SampleError.CONNECT)
    assert sample.sent_ns is None


def test_a_server_that_speaks_no_tls_is_no_connection(trusting: Child, server: str) -> None:
    sample = one(trusting, server.replace("http", "https"), timeout_s=1.0)
    assert sample.status is not Status.OK and sample.sent_ns is None
