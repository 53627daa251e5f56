"""Checks of who can get at what is kept: by its files, over the network, and by taking the disk away."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import stat
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from recollect.doctor.check import Check, of_each
from recollect.doctor.finding import Verdict, failed, not_applicable, passed, warned
from recollect.doctor.patient import Patient, Place
from recollect.settings import Secret
from recollect.stores.health import Vitals

_READ, _WRITE = stat.S_IRGRP | stat.S_IROTH, stat.S_IWGRP | stat.S_IWOTH
_ENCRYPTED_SSLMODES = ("require", "verify-ca", "verify-full")


async def only_the_owner_reads(patient: Patient) -> Verdict:
    if os.name != "posix":
        return not_applicable("files have no such permissions on this system")

    async def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not vitals.files:
            return None
        modes = {file: mode for file in vitals.files if (mode := await asyncio.to_thread(_mode, file))}
        fix = "chmod go= " + " ".join(map(str, modes))
        if any(mode & _WRITE for mode in modes.values()):
            return failed("others than its owner may change its files", fix)
        if any(mode & _READ for mode in modes.values()):
            return warned("others than its owner may read its files", fix)
        return passed("its files are their owner's alone")

    return await of_each(patient, look, "nothing of it lies on this machine")


async def take_from_others(patient: Patient) -> None:
    for place in patient.places:
        for file in place.vitals.files if place.vitals is not None else ():
            mode = await asyncio.to_thread(_mode, file)
            if mode & (_READ | _WRITE):
                await asyncio.to_thread(file.chmod, mode & stat.S_IRWXU)


async def strangers_stay_out(patient: Patient) -> Verdict:
    known = await asyncio.to_thread(_read_by_others, patient)
    if known:
        return warned(f"{known} holds a password or a key, and others may read it", f"chmod go= {known}")

    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.files or vitals.survives == "nothing":
            return None
        if vitals.sees_everybody:
            return failed(
                "we come in as a role that is above the policies which keep tenants apart",
                "alter role … nosuperuser nobypassrls, or come in as another",
            )
        parts = urlsplit(place.url)
        if _is_here(parts.hostname):
            return passed("the server is on this machine")
        if not _is_encrypted(place.url):
            return failed("it is reached over the network in plain text", _encrypt(parts.scheme))
        if not (parts.password or parts.username or dict(parse_qsl(parts.query)).get("password")):
            return warned("it lets us in without a password", "set one at the server, and name it in the URL")
        return passed("it is reached encrypted, and with a password")

    return await of_each(patient, look, "no server is involved; who may read the files is what access.files looks at")


async def disks_tell_nothing(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.encrypted is None:
            return None
        if vitals.encrypted:
            return passed("what is on disk is encrypted")
        return warned(
            "what is on disk is not encrypted by us: whoever has the disk or a backup has it all",
            "recollect key new KEYFILE, name it as encryption_key_file, then recollect key set; or encrypt the disk",
        )

    return await of_each(patient, look, "the disk is a server's, and its administrator knows whether it is encrypted")


def _mode(file: Path) -> int:
    try:
        return stat.S_IMODE(file.stat().st_mode)
    except OSError:  # a log that was there a moment ago
        return 0


def _read_by_others(patient: Patient) -> Path | None:
    """The file of settings, where it holds what nobody else should know and somebody else can."""
    file = patient.settings_file
    if file is None or os.name != "posix" or not _mode(file) & _READ:
        return None
    text = file.read_text("utf-8", "replace")
    keys = [name for name in patient.settings.__slots__ if isinstance(getattr(patient.settings, name), Secret)]
    urls = [place.url for place in patient.places if urlsplit(place.url).password and place.url in text]
    # The whole name: `encryption_key_file` says where a key is, and is none.
    named = {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line}
    return file if urls or not named.isdisjoint(keys) else None


def _is_here(host: str | None) -> bool:
    if not host or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_encrypted(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme.startswith("postgres"):
        return dict(parse_qsl(parts.query)).get("sslmode") in _ENCRYPTED_SSLMODES
    return parts.scheme.partition("+")[0] == "rediss" or parts.scheme == "chroma+https"


def _encrypt(scheme: str) -> str:
    if scheme.startswith("postgres"):
        return "add ?sslmode=verify-full to the URL"
    return "use rediss:// in the URL" if scheme.startswith("redis") else "use chroma+https:// in the URL"


CHECKS = (
    Check(
        "access.files",
        "Files are their owner's alone",
        "Whoever may read the file reads everybody's memory; whoever may write it decides what agents believe.",
        only_the_owner_reads,
        take_from_others,
    ),
    Check(
        "access.auth",
        "Servers let in nobody else",
        "Passwords and memories that cross a network in plain text are anybody's, and so is a server without a lock.",
        strangers_stay_out,
    ),
    Check(
        "access.encryption",
        "What is on disk is encrypted",
        "Disks are sold, laptops are lost and backups travel: what is in them should be worth nothing to a finder.",
        disks_tell_nothing,
    ),
)
