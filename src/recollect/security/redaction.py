"""Redaction policy: secrets in texts to be stored are allowed, flagged, redacted or refused, by the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from recollect.errors import SecretRefused
from recollect.security.secrets import PERSONAL_KINDS, SecretFinding, find_secrets
from recollect.settings import Settings

SENSITIVE_KEY = "sensitive"
"""Metadata key for the kinds of secrets and personal data found in a text."""

LARGE_TEXT_LENGTH = 10_000
"""Texts of at least this many characters take milliseconds and are scanned in a thread."""

REDACTED_KINDS_KEY = "left_out"
"""Attribute of a log record with the redacted kinds."""

_MAX_SHOWN_NAME = 20

_log = logging.getLogger("recollect.security")


class RedactedValue(NamedTuple):
    """Value to store, and the kinds found in it, sorted."""

    value: Any
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedactionPolicy:
    """Treatment of secrets and of personal data."""

    secrets: str
    personal_data: str

    @classmethod
    def from_settings(cls, settings: Settings) -> RedactionPolicy:
        return cls(settings.secrets, settings.personal_data)

    @property
    def is_active(self) -> bool:
        return self.secrets != "allow" or self.personal_data != "allow"

    def redact_text(self, place: str, text: str) -> RedactedValue:
        """Return the text to store; raise `SecretRefused` with the kind and position of a refused secret."""
        found = self._find(place, text)
        redacted = [finding for finding in found if self._get_action(finding) == "redact"]
        parts, end = [], 0
        for finding in redacted:
            parts += [text[end : finding.start], f"[redacted: {finding.kind}]"]
            end = finding.end
        if kinds := _list_kinds(redacted):
            _log.info("%s contained %s: redacted", place, ", ".join(kinds), extra={REDACTED_KINDS_KEY: kinds})
        return RedactedValue("".join([*parts, text[end:]]), _list_kinds(found))

    def redact_json(self, place: str, value: Any) -> RedactedValue:
        """Return a JSON value with its texts redacted; keys are not scanned."""
        if not self.is_active:
            return RedactedValue(value)
        kinds: set[str] = set()
        redacted = self._redact_nested(place, value, kinds)
        return RedactedValue(redacted, tuple(sorted(kinds))) if kinds else RedactedValue(value)

    def find_unaltered_kinds(self, place: str, text: str) -> tuple[str, ...]:
        """Return the kinds in a text that must not be changed; log them, and raise `SecretRefused` if refused."""
        kinds = _list_kinds(self._find(place, text))
        if kinds:
            _log.warning("%s contains %s and is stored unchanged", place, ", ".join(kinds))
        return kinds

    def _find(self, place: str, text: str) -> list[SecretFinding]:
        if not self.is_active:
            return []
        found = [finding for finding in find_secrets(text) if self._get_action(finding) != "allow"]
        if refused := [finding for finding in found if self._get_action(finding) == "refuse"]:
            first = refused[0]
            option = "personal_data" if first.kind in PERSONAL_KINDS else "secrets"
            article = "an" if first.kind[0] in "aeiou" else "a"
            raise SecretRefused(
                f"{place} contains {article} {first.kind} at character {first.start}, and the setting {option} is "
                "'refuse'. Remove it, or set the option to redact, flag or allow"
            )
        return found

    def _get_action(self, finding: SecretFinding) -> str:
        return self.personal_data if finding.kind in PERSONAL_KINDS else self.secrets

    def _redact_nested(self, place: str, value: Any, kinds: set[str]) -> Any:
        if isinstance(value, str):
            redacted = self.redact_text(place, value)
            kinds.update(redacted.kinds)
            return redacted.value
        if isinstance(value, Mapping):
            # A key could be a secret.
            shown = {name: name if len(name) <= _MAX_SHOWN_NAME and name.isidentifier() else "…" for name in value}
            return {name: self._redact_nested(f"{place}.{shown[name]}", inner, kinds) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact_nested(f"{place}[{index}]", inner, kinds) for index, inner in enumerate(value)]
        return value


def add_sensitive_kinds(metadata: Mapping[str, Any], *values: RedactedValue) -> dict[str, Any]:
    """Return the metadata with the kinds of the values added to its own."""
    kinds = {kind for value in values for kind in value.kinds}
    if not kinds:
        return dict(metadata)
    stored = metadata.get(SENSITIVE_KEY)
    if isinstance(stored, list | tuple):
        kinds.update(kind for kind in stored if isinstance(kind, str))
    return {**metadata, SENSITIVE_KEY: sorted(kinds)}


def _list_kinds(found: list[SecretFinding]) -> tuple[str, ...]:
    return tuple(sorted({finding.kind for finding in found}))
