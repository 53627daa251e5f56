"""Checks of the settings."""

from __future__ import annotations

from recollect.health.context import CheckContext, Checklist
from recollect.health.report import CheckResult, make_failure, make_pass, make_warning
from recollect.models.usage import find_price

# US dollars per million input tokens. A summary reads everything that it shortens.
_MAX_SUMMARY_PRICE = 1.5
_SMALL_MODEL_FIX = "RECOLLECT_LLM=anthropic:claude-haiku-4-5, or another small model"
_NOT_CHECKED = make_warning("not checked: the settings are invalid", "see config.settings")

CHECKS = Checklist()


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
