"""What may be said about a procedure: a check of everything that a caller gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recollect.errors import BadInput, BadQuery
from recollect.guard.instructions import VOUCHED
from recollect.stores.admission import check_text
from recollect.tiers.checks import checked_name, checked_writable
from recollect.tiers.facts import Fact

LEAST_TRUST = VOUCHED
"""What is trusted less may be remembered as a fact, but is never followed as a procedure."""

_LONGEST_KEY = 256
_LONGEST_TAG = 64
_MOST_TAGS = 32
_LONGEST_DESCRIPTION = 4_000
_LONGEST_NOTE = 2_000
_LONGEST_RUN = 1e9  # seconds: thirty years, and far from where a sum of them would lose digits


def checked_trust(source: Any, trust: Any) -> float:
    """How far the source is trusted, or `BadInput` when that is too little for a procedure."""
    if not isinstance(source, str) or not source.strip():
        raise BadInput(f"source is a name such as 'user' or 'web', not {source!r:.80}")
    check_text((source,))
    if trust is not None and not _is_number(trust, 1.0):
        raise BadInput(f"trust is a number from 0 to 1, not {trust!r:.80}")
    worth = float(Fact(content="", source=source, trust=trust).trusted)
    if worth < LEAST_TRUST:
        raise BadInput(
            f"text from {source!r:.80} is trusted {worth:g}, and a procedure needs {LEAST_TRUST:g}: untrusted content "
            "never becomes or changes one; have somebody you trust read it and save it as their own"
        )
    return worth


def checked_key(key: Any) -> str:
    return checked_name("a key", key, _LONGEST_KEY, "deploy.staging")


def checked_tag(tag: Any) -> str:
    return checked_name("a tag", tag, _LONGEST_TAG, "deploy")


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Each tag once, in the order given."""
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise BadInput(f"tags is a list of texts, such as ['deploy'], not {tags!r:.80}")
    named = tuple(dict.fromkeys(checked_tag(tag) for tag in tags))
    if len(named) > _MOST_TAGS:
        raise BadInput(f"a procedure has at most {_MOST_TAGS} tags, not {len(named)}")
    return named


def checked_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str):
        raise BadInput(f"a prefix is the beginning of keys, such as 'deploy.', not {prefix!r:.80}")
    return checked_writable("a prefix", prefix)


def checked_body(body: Any, most: int) -> str:
    text = _checked_text("a body", body, most)
    if not text.strip():
        raise BadInput("a procedure needs a body that says how it is done; the text given is empty")
    return text


def checked_description(description: Any) -> str:
    return _checked_text("a description", description, _LONGEST_DESCRIPTION).strip()


def checked_note(note: Any) -> str | None:
    return None if note is None else _checked_text("a note", note, _LONGEST_NOTE)


def checked_seconds(seconds: Any) -> float | None:
    if seconds is not None and not _is_number(seconds, _LONGEST_RUN):
        raise BadInput(f"seconds is how long it took, a number from 0 to {_LONGEST_RUN:g}, not {seconds!r:.80}")
    return None if seconds is None else float(seconds)


def checked_success(success: Any) -> bool:
    if not isinstance(success, bool):
        raise BadInput(f"success is True or False, not {success!r:.80}")
    return success


def checked_share(min_relevance: Any) -> float:
    if not _is_number(min_relevance, 1.0):
        raise BadQuery(f"min_relevance is a number from 0 to 1, not {min_relevance!r:.80}")
    return float(min_relevance)


def checked_version(version: Any) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BadInput(f"a version is a whole number from 1, not {version!r:.80}")
    return version


def _checked_text(what: str, text: Any, most: int) -> str:
    if not isinstance(text, str):
        raise BadInput(f"{what} is a text, not {type(text).__name__}")
    if len(text) > most:
        raise BadInput(f"{what} has at most {most:,} characters, not {len(text):,}; shorten it")
    return checked_writable(what, text)


def _is_number(value: Any, most: float) -> bool:
    # NaN is not between any two numbers.
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(0.0 <= value <= most)
