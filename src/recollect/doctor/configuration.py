"""Checks of the settings: that they can be read, that tiers end somewhere, who compresses, what becomes of secrets."""

from __future__ import annotations

from recollect.doctor.check import Check
from recollect.doctor.finding import Verdict, failed, passed, warned
from recollect.doctor.patient import Patient
from recollect.inference.prices import price_of

# A summary reads all that it makes shorter: what costs more than this for a million tokens is no cheap model.
_CHEAP_DOLLARS = 1.5
_BOUNDED = ("working", "episodic")
_NOT_LOOKED = warned("it was not looked at: the settings cannot be used", "see config.settings")


async def settings_can_be_used(patient: Patient) -> Verdict:
    if patient.bad_settings is not None:
        return failed(str(patient.bad_settings), "recollect config show")
    where = f"{patient.settings_file} and " if patient.settings_file is not None else ""
    return passed(f"every option from {where}the environment can be used")


async def tiers_end_somewhere(patient: Patient) -> Verdict:
    if patient.bad_settings is not None:
        return _NOT_LOOKED
    endless = []
    for name in _BOUNDED:
        tier = patient.settings.tier(name)
        if tier.max_items is None:
            endless.append(f"{name} has no cap")
        if name == "episodic" and tier.ttl_seconds is None:
            endless.append(f"{name} has no lifetime")
    if endless:
        return warned(
            f"{', '.join(endless)}: it grows for as long as anybody talks",
            "set max_items and ttl_seconds in recollect.toml, as in [tiers.episodic]",
        )
    episodic = patient.settings.tier("episodic")
    return passed(
        f"working keeps {patient.settings.tier('working').max_items} items; episodic {episodic.max_items:,} a session, "
        f"for {(episodic.ttl_seconds or 0) / 3600:g} h"
    )


async def a_cheap_model_compresses(patient: Patient) -> Verdict:
    if patient.bad_settings is not None:
        return _NOT_LOOKED
    if not patient.llm:
        return warned(
            "there is no language model: summaries are extracts, and facts are found by rules alone",
            "RECOLLECT_LLM=anthropic:claude-haiku-4-5, or another small model",
        )
    price = price_of(patient.llm)
    if price is not None and price.read > _CHEAP_DOLLARS:
        return warned(
            f"{patient.llm} costs ${price.read:g} for a million tokens that it reads, which is much for a summary",
            "RECOLLECT_LLM=anthropic:claude-haiku-4-5, or another small model",
        )
    return passed(f"{patient.llm} does the cheap work")


async def secrets_are_looked_for(patient: Patient) -> Verdict:
    if patient.bad_settings is not None:
        return _NOT_LOOKED
    told = f"secrets: {patient.settings.secrets}, personal data: {patient.settings.personal_data}"
    allowed = [name for name in ("secrets", "personal_data") if getattr(patient.settings, name) == "allow"]
    if not allowed:
        return passed(told)
    return warned(
        f"{told}: what is allowed is kept as it came, and recalled into prompts",
        "; ".join(f"RECOLLECT_{name.upper()}={'redact' if name == 'secrets' else 'flag'}" for name in allowed),
    )


CHECKS = (
    Check(
        "config.settings",
        "Settings can be used",
        "An option that is refused keeps every program that uses this store from starting.",
        settings_can_be_used,
    ),
    Check(
        "config.tiers",
        "Lifetimes and caps are set",
        "A tier without an end fills the disk, and what is found in it is less and less to the point.",
        tiers_end_somewhere,
    ),
    Check(
        "config.compression",
        "A cheap model does the summaries",
        "Extracts keep less of the meaning than a summary, and a dear model makes summaries cost more than they save.",
        a_cheap_model_compresses,
    ),
    Check(
        "config.secrets",
        "Secrets and personal data are looked for",
        "A key that is kept today is in a prompt tomorrow, in a log the day after, and in every backup.",
        secrets_are_looked_for,
    ),
)
