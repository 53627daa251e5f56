"""Number of hypothesis examples: a share of what the loaded profile allows."""

from __future__ import annotations

from hypothesis import settings


def limit_examples(share: float) -> settings:
    """Return settings with `share` of the profile's examples, for tests whose examples are slow."""
    return settings(max_examples=max(4, round(settings().max_examples * share)))
