"""Damage to what is stored, as a failing disk does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import apsw

from recollect import AgentMemory


def damage(memory: AgentMemory, task: str, *versions: int) -> None:
    """Change the stored text of some versions, and not their sha256."""
    store: Any = memory.checkpoints.store
    if hasattr(store, "path"):
        connection = apsw.Connection(str(store.path))
        for version in versions:
            connection.execute(
                "update checkpoints set state = replace(state, 'e', 'x') where task = ? and version = ?",
                (task, version),
            )
        connection.close()
        return
    # The store in memory has nothing that could be damaged: say that it was.
    held = cast(dict[Any, Any], store._held_tasks._versions)
    name = (memory.checkpoints.space, task)
    held[name] = tuple(replace(one, intact=one.version not in versions) for one in held[name])
