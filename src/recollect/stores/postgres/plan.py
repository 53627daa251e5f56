"""What a batch has decided to write: statements by tenant, sent together once nothing can be refused any more."""

from __future__ import annotations

from recollect.stores.postgres.server import Values, Work


class Plan:
    """Statements in their order. Those of one tenant stand together, since rows of others are out of sight."""

    def __init__(self) -> None:
        self._steps: dict[str, list[tuple[str, list[Values]]]] = {}

    def add(self, tenant: str, statement: str, *values: Values) -> None:
        """A statement, run once for each of the values."""
        if values:
            self._steps.setdefault(tenant, []).append((statement, list(values)))

    async def run(self, work: Work) -> None:
        """Everything in one go: the server's answers are waited for at the end."""
        async with work.connection.pipeline():
            for tenant, steps in self._steps.items():
                await work.about(tenant)
                for statement, values in steps:
                    if len(values) == 1:
                        await work.run(statement, values[0])
                    else:
                        await work.run_each(statement, values)
