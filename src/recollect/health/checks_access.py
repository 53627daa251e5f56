"""Checks of the settings, and of access: file permissions, encryption, and the passwords of servers."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import stat
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from recollect.health.context import CheckContext, Checklist, StoreTarget, check_each_store
from recollect.health.report import CheckResult, make_failure, make_pass, make_warning
from recollect.models.usage import find_price
from recollect.settings import Secret
from recollect.stores.health import StoreStats

_OTHERS_READ, _OTHERS_WRITE = stat.S_IRGRP | stat.S_IROTH, stat.S_IWGRP | stat.S_IWOTH
_ENCRYPTED_SSLMODES = ("require", "verify-ca", "verify-full")

# US dollars per million input tokens. A summary reads everything that it shortens.
_MAX_SUMMARY_PRICE = 1.5
_SMALL_MODEL_FIX = "RECOLLECT_LLM=anthropic:claude-haiku-4-5, or another small model"
_NOT_CHECKED = make_warning("not checked: the settings are invalid", "see config.settings")

CHECKS = Checklist()


# --- Settings ---


@CHECKS.add("config.settings", "The settings are valid")
async def check_settings(context: CheckContext) -> CheckResult:
    """A program with an invalid option does not start."""
    if context.bad_settings is not None:
        return make_failure(str(context.bad_settings), "recollect config show")
    file = f"{context.settings_file} and " if context.settings_file is not None else ""
    return make_pass(f"every option from {file}the environment is valid")


@CHECKS.add("config.tiers", "Tiers have lifetimes and caps")
async def check_tier_limits(context: CheckContext) -> CheckResult:
    """A tier without limits fills the disk, and its search results get worse."""
    if context.bad_settings is not None:
        return _NOT_CHECKED
    working, episodic = context.settings.tier("working"), context.settings.tier("episodic")
    unlimited = [f"{tier.name} has no cap" for tier in (working, episodic) if tier.max_items is None]
    if episodic.ttl_seconds is None:
        unlimited.append("episodic has no lifetime")
    if unlimited:
        return make_warning(
            f"{', '.join(unlimited)}: it grows without end",
            "set max_items and ttl_seconds in recollect.toml, as in [tiers.episodic]",
        )
    return make_pass(
        f"working keeps {working.max_items} items; episodic keeps {episodic.max_items:,} per session "
        f"for {(episodic.ttl_seconds or 0) / 3600:g} h"
    )


@CHECKS.add("config.compression", "A small model writes the summaries")
async def check_summary_model(context: CheckContext) -> CheckResult:
    """Extracts keep less than summaries. With an expensive model, summaries cost more than they save."""
    if context.bad_settings is not None:
        return _NOT_CHECKED
    if not context.llm:
        return make_warning(
            "there is no language model: summaries are extracts, and facts are found by rules only", _SMALL_MODEL_FIX
        )
    price = find_price(context.llm)
    if price is not None and price.read > _MAX_SUMMARY_PRICE:
        return make_warning(
            f"{context.llm} costs ${price.read:g} per million input tokens, which is expensive for summaries",
            _SMALL_MODEL_FIX,
        )
    return make_pass(f"{context.llm} writes the summaries")


@CHECKS.add("config.secrets", "Secrets and personal data are handled")
async def check_secret_policies(context: CheckContext) -> CheckResult:
    """A stored key reaches prompts, logs and backups."""
    if context.bad_settings is not None:
        return _NOT_CHECKED
    policies = f"secrets: {context.settings.secrets}, personal data: {context.settings.personal_data}"
    allowed = [name for name in ("secrets", "personal_data") if getattr(context.settings, name) == "allow"]
    if not allowed:
        return make_pass(policies)
    return make_warning(
        f"{policies}: allowed data is stored unchanged, and recalled into prompts",
        "; ".join(f"RECOLLECT_{name.upper()}={'redact' if name == 'secrets' else 'flag'}" for name in allowed),
    )


# --- Access ---


async def restrict_file_permissions(context: CheckContext) -> None:
    for target in context.targets:
        for file in target.stats.files if target.stats is not None else ():
            mode = await asyncio.to_thread(_get_file_mode, file)
            if mode & (_OTHERS_READ | _OTHERS_WRITE):
                await asyncio.to_thread(file.chmod, mode & stat.S_IRWXU)


@CHECKS.add_store_check(
    "access.files",
    "Only the owner can access the files",
    "no store has files with permissions on this machine",
    fix=restrict_file_permissions,
)
async def check_file_permissions(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A user who can read the files can read all memories. A user who can write them decides what agents believe."""
    if os.name != "posix" or not stats.files:
        return None
    modes = {file: mode for file in stats.files if (mode := await asyncio.to_thread(_get_file_mode, file))}
    fix = "chmod go= " + " ".join(map(str, modes))
    if any(mode & _OTHERS_WRITE for mode in modes.values()):
        return make_failure("other users can write its files", fix)
    if any(mode & _OTHERS_READ for mode in modes.values()):
        return make_warning("other users can read its files", fix)
    return make_pass("only the owner can access its files")


@CHECKS.add("access.auth", "Servers require encryption and a password")
async def check_server_access(context: CheckContext) -> CheckResult:
    """Passwords and memories that cross a network unencrypted can be read, and so can a server without a password."""
    exposed = await asyncio.to_thread(_find_exposed_settings, context)
    if exposed:
        return make_warning(
            f"{exposed} contains a password or a key, and other users can read it", f"chmod go= {exposed}"
        )

    def inspect(target: StoreTarget, stats: StoreStats) -> CheckResult | None:
        if stats.files or stats.durability == "nothing":
            return None
        if stats.bypasses_row_security:
            return make_failure(
                "the database role bypasses row-level security, which separates tenants",
                "alter role … nosuperuser nobypassrls, or connect with another role",
            )
        parts = urlsplit(target.url)
        if _is_local_host(parts.hostname):
            return make_pass("the server is on this machine")
        if not _is_encrypted_url(target.url):
            return make_failure(
                "the connection over the network is not encrypted", _format_encryption_fix(parts.scheme)
            )
        if not (parts.password or parts.username or dict(parse_qsl(parts.query)).get("password")):
            return make_warning(
                "the server accepts connections without a password", "set a password, and add it to the URL"
            )
        return make_pass("the connection is encrypted and has a password")

    return await check_each_store(context, inspect, "no store is on a server; access.files checks the files")


@CHECKS.add_store_check(
    "access.encryption", "Files are encrypted", "the disk belongs to a server, whose administrator encrypts it"
)
def check_encryption(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Disks are sold, laptops are lost and backups are copied."""
    if stats.encrypted is None:
        return None
    if stats.encrypted:
        return make_pass("its files are encrypted")
    return make_warning(
        "its files are not encrypted: a copy of the disk or a backup can be read",
        "recollect key new KEYFILE, name it as encryption_key_file, then recollect key set; or encrypt the disk",
    )


def _get_file_mode(file: Path) -> int:
    """Return the permission bits; 0 if the file is gone, as a log can be at any time."""
    try:
        return stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return 0


def _find_exposed_settings(context: CheckContext) -> Path | None:
    """Return the settings file if it contains a secret and other users can read it."""
    file, settings = context.settings_file, context.settings
    if file is None or os.name != "posix" or not _get_file_mode(file) & _OTHERS_READ:
        return None
    text = file.read_text("utf-8", "replace")
    secrets = [name for name in settings.__slots__ if isinstance(getattr(settings, name), Secret)]
    urls = [target.url for target in context.targets if urlsplit(target.url).password and target.url in text]
    # Compare whole names: `encryption_key_file` is the path of a key, not a key.
    names = {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line}
    return file if urls or not names.isdisjoint(secrets) else None


def _is_local_host(host: str | None) -> bool:
    if not host or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_encrypted_url(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme.startswith("postgres"):
        return dict(parse_qsl(parts.query)).get("sslmode") in _ENCRYPTED_SSLMODES
    return parts.scheme.partition("+")[0] == "rediss" or parts.scheme == "chroma+https"


def _format_encryption_fix(scheme: str) -> str:
    if scheme.startswith("postgres"):
        return "add ?sslmode=verify-full to the URL"
    return "use rediss:// in the URL" if scheme.startswith("redis") else "use chroma+https:// in the URL"
