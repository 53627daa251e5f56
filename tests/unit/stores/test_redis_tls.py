"""Redis over TLS: trusted and untrusted certificates, and the error messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from recollect.errors import BadSettings, StoreUnavailable
from recollect.stores.redis import RedisStore
from recollect.stores.redis.client import RedisTimeouts, is_transient
from recollect.testing.factories import LOG, list_ids, make_append
from tests.servers.redis import RedisServer
from tests.servers.tls import Certificate, TlsFront

SHORT_TIMEOUTS = RedisTimeouts(response=0.3, total=0.5)
# Certificate errors are not retried: these timeouts are never reached.
LONG_TIMEOUTS = RedisTimeouts(response=60, total=60)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.made(tmp_path_factory.mktemp("certificate"))


async def test_trusted_certificate_connects(server: RedisServer, certificate: Certificate):
    async with TlsFront(server.port, certificate) as port:
        store = await RedisStore.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate.file}")
        await store.write(make_append("a"))
        assert list_ids(await store.recent(LOG)) == ["a"]
        await store.close()


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
async def test_untrusted_certificate_is_refused(
    server: RedisServer, certificate: Certificate, tmp_path: Path, scheme: str
):
    # Mutant: a certificate error counts as a lost connection, and is retried until the timeout.
    other = Certificate.made(tmp_path)
    async with TlsFront(server.port, certificate) as port:
        for options in ("", f"?ssl_ca_certs={other.file}"):
            with pytest.raises(StoreUnavailable, match="ssl_ca_certs=/PATH"):
                await RedisStore.open(f"{scheme}://127.0.0.1:{port}{options}", patience=LONG_TIMEOUTS)


async def test_certificate_for_another_host_is_refused(server: RedisServer, tmp_path: Path):
    elsewhere = Certificate.made(tmp_path, "DNS:redis.example")
    async with TlsFront(server.port, elsewhere) as port:
        with pytest.raises(StoreUnavailable, match="is for another host name"):
            await RedisStore.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={elsewhere.file}", patience=LONG_TIMEOUTS)


async def test_unreadable_ca_file_is_refused(server: RedisServer, certificate: Certificate):
    async with TlsFront(server.port, certificate) as port:
        for file in (certificate.file.with_name("missing.pem"), certificate.key):
            with pytest.raises(BadSettings, match="name PEM files"):
                await RedisStore.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={file}", patience=LONG_TIMEOUTS)


async def test_protocol_mismatch_names_the_url_scheme(server: RedisServer, certificate: Certificate):
    with pytest.raises(StoreUnavailable, match="speaks TLS"):
        await RedisStore.open(f"{server.url.replace('redis', 'rediss')}", patience=SHORT_TIMEOUTS)
    async with TlsFront(server.port, certificate) as port:
        with pytest.raises(StoreUnavailable, match="if it does: rediss://"):
            await RedisStore.open(f"redis://127.0.0.1:{port}/0", patience=SHORT_TIMEOUTS)


def test_unrelated_exception_context_is_not_the_cause():
    error = redis.ConnectionError("Connection closed by server.")
    error.__context__ = FileNotFoundError(2, "No such file or directory")
    assert is_transient(error)
