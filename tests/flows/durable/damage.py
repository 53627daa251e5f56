"""Damage to stored checkpoints, as by a failing disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import apsw

from recollect import AgentMemory


def damage(memory: AgentMemory, task: str, *versions: int) -> None:
    """Change the stored text of some versions, but not their sha256."""
    store: Any = memory.checkpoints._store
    if hasattr(store, "path"):
        connection = apsw.Connection(str(store.path))
        for version in versions:
            connection.execute(
                "update checkpoints set state = replace(state, 'e', 'x') where task = ? and version = ?",
                (task, version),
            )
        connection.close()
        return
    # The in-memory store has no text that could be damaged, so clear the `intact` flag.
    stored = cast(dict[Any, Any], store._versions)[memory.checkpoints._space]
    stored[task] = tuple(replace(checkpoint, intact=checkpoint.version not in versions) for checkpoint in stored[task])
