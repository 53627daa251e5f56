"""Settings that every test shares: how hard hypothesis tries, and that a rerun in CI tries the same."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Shared machines pause for longer than hypothesis expects; a slow example is not a wrong one.
settings.register_profile(
    "recollect", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", settings.get_profile("recollect"), derandomize=True, print_blob=True)
settings.register_profile(
    "soak", settings.get_profile("recollect"), max_examples=2000, derandomize=False, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "recollect")
