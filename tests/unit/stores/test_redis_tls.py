"""Redis over TLS: a line that is kept private, and what is told when nobody can vouch for the other end."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from recollect.errors import BadSettings, StoreUnavailable
from recollect.stores.redis import RedisStore
from recollect.stores.redis.failures import passes
from recollect.stores.redis.server import Patience
from recollect.testing.samples import LOG, append, ids
from tests.servers.redis import RedisServer
from tests.servers.tls import Certificate, TlsFront

HASTY = Patience(answer=0.3, altogether=0.5)
# What a certificate says is told at once: nobody waits as long as this.
PATIENT = Patience(answer=60, altogether=60)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.made(tmp_path_factory.mktemp("certificate"))


async def test_a_line_that_the_authority_vouches_for_is_used(server: RedisServer, certificate: Certificate):
    async with TlsFront(server.port, certificate) as port:
        store = await RedisStore.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate.file}")
        await store.write(append("a"))
        assert ids(await store.recent(LOG)) == ["a"]
        await store.close()


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
async def test_one_that_nobody_vouches_for_is_refused(
    server: RedisServer, certificate: Certificate, tmp_path: Path, scheme: str
):
    # Mutant: a certificate that counts as a line that was cut, and is tried again until patience ends.
    other = Certificate.made(tmp_path)
    async with TlsFront(server.port, certificate) as port:
        for options in ("", f"?ssl_ca_certs={other.file}"):
            with pytest.raises(StoreUnavailable, match="ssl_ca_certs=/PATH"):
                await RedisStore.open(f"{scheme}://127.0.0.1:{port}{options}", patience=PATIENT)


async def test_one_made_for_another_name_is_refused(server: RedisServer, tmp_path: Path):
    elsewhere = Certificate.made(tmp_path, "DNS:redis.example")
    async with TlsFront(server.port, elsewhere) as port:
        with pytest.raises(StoreUnavailable, match="certificate of another name"):
            await RedisStore.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={elsewhere.file}", patience=PATIENT)


async def test_an_authority_that_cannot_be_read_is_told_of(server: RedisServer, certificate: Certificate):
    async with TlsFront(server.port, certificate) as port:
        for file in (certificate.file.with_name("missing.pem"), certificate.key):
            with pytest.raises(BadSettings, match="files in PEM form"):
                await RedisStore.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={file}", patience=PATIENT)


async def test_who_speaks_another_language_is_told_which(server: RedisServer, certificate: Certificate):
    with pytest.raises(StoreUnavailable, match="speaks TLS"):
        await RedisStore.open(f"{server.url.replace('redis', 'rediss')}", patience=HASTY)
    async with TlsFront(server.port, certificate) as port:
        with pytest.raises(StoreUnavailable, match="if not: rediss://"):
            await RedisStore.open(f"redis://127.0.0.1:{port}/0", patience=HASTY)


def test_what_a_caller_was_handling_is_not_taken_for_the_reason():
    cut = redis.ConnectionError("Connection closed by server.")
    cut.__context__ = FileNotFoundError(2, "No such file or directory")
    assert passes(cut)
