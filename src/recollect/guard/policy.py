"""What becomes of a secret that is about to be kept: let in, noted, blotted out or refused, as the settings say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from recollect.errors import SecretRefused
from recollect.guard.secrets import PERSONAL, Finding, findings
from recollect.settings import Settings

SENSITIVE = "sensitive"
"""Where metadata says which kinds of secrets and personal data stand, or stood, in a text."""

LONG_TO_LOOK_THROUGH = 10_000
"""Characters from which on a text is looked through in a thread: some milliseconds."""

LEFT_OUT = "left_out"
"""Under which name a record of the log carries the kinds that were blotted out."""

_LONGEST_NAME = 20

_log = logging.getLogger("recollect.guard")


class Kept(NamedTuple):
    """A value as it may be kept, and the kinds that are noted of it, in alphabetical order."""

    value: Any
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """What the settings say of secrets and of personal data."""

    secrets: str
    personal_data: str

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        return cls(settings.secrets, settings.personal_data)

    @property
    def looks(self) -> bool:
        return self.secrets != "allow" or self.personal_data != "allow"

    def text(self, place: str, text: str) -> Kept:
        """The text as it may be kept, or `SecretRefused` naming the kind and the place."""
        found = self._found(place, text)
        if not found:
            return Kept(text)
        parts, at, gone = [], 0, []
        for one in found:
            if self._treats(one) == "redact":
                parts += [text[at : one.start], f"[redacted: {one.kind}]"]
                at = one.end
                gone.append(one)
        if kinds := _kinds(gone):
            _log.info("%s held %s, left out of what is kept", place, ", ".join(kinds), extra={LEFT_OUT: kinds})
        return Kept("".join([*parts, text[at:]]), _kinds(found))

    def plain(self, place: str, value: Any) -> Kept:
        """The same for JSON: every text in it, and no name."""
        if not self.looks:
            return Kept(value)
        kinds: set[str] = set()
        kept = self._inside(place, value, kinds)
        return Kept(kept, tuple(sorted(kinds))) if kinds else Kept(value)

    def unaltered(self, place: str, text: str) -> tuple[str, ...]:
        """The kinds in what must stay as it is, to the letter: refused or noted in the log, and never blotted out."""
        kinds = _kinds(self._found(place, text))
        if kinds:
            _log.warning("%s holds %s, and is kept as it is", place, ", ".join(kinds))
        return kinds

    def _found(self, place: str, text: str) -> list[Finding]:
        found = [one for one in findings(text) if self._treats(one) != "allow"] if self.looks else []
        if not found:
            return found
        refused = _kinds([one for one in found if self._treats(one) == "refuse"])
        if refused:
            first = next(one for one in found if one.kind in refused)
            option = "personal_data" if first.kind in PERSONAL else "secrets"
            raise SecretRefused(
                f"{place} holds {_a(first.kind)} at character {first.start}, and the setting {option} is 'refuse'; "
                "take it out, or set it to redact, flag or allow"
            )
        return found

    def _treats(self, one: Finding) -> str:
        return self.personal_data if one.kind in PERSONAL else self.secrets

    def _inside(self, place: str, value: Any, kinds: set[str]) -> Any:
        if isinstance(value, str):
            kept = self.text(place, value)
            kinds.update(kept.kinds)
            return kept.value
        if isinstance(value, Mapping):
            return {name: self._inside(f"{place}.{_shown(name)}", inner, kinds) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._inside(f"{place}[{at}]", inner, kinds) for at, inner in enumerate(value)]
        return value


def noted(metadata: Mapping[str, Any], *kept: Kept) -> dict[str, Any]:
    """Metadata that says what was found, beside what it says already."""
    kinds = sorted({kind for one in kept for kind in one.kinds})
    if not kinds:
        return dict(metadata)
    before = metadata.get(SENSITIVE)
    known = [kind for kind in before if isinstance(kind, str)] if isinstance(before, list | tuple) else []
    return {**metadata, SENSITIVE: sorted({*known, *kinds})}


def _shown(name: str) -> str:
    """A name in metadata, as far as it cannot be a secret itself."""
    return name if len(name) <= _LONGEST_NAME and name.isidentifier() else "…"


def _kinds(found: list[Finding]) -> tuple[str, ...]:
    return tuple(sorted({one.kind for one in found}))


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
