"""Commands that erase, complete and verify erasures, and restore a backup without what was erased."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from recollect.cli.context import FAILED, CliContext
from recollect.cli.output import print_error, print_json, print_text
from recollect.errors import BadInput, NotFound
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.stores.erasure import ErasureReceipt

_SCOPE_PARTS = ("tenant", "user", "agent", "session")


def erase(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; it cannot be undone.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also overwrite the log and the statistics of a PostgreSQL server.")
    ] = False,
    caller: CliContext,
) -> None:
    """Erase everything of a user, session, agent or tenant, in every tier, and print the receipt.

    Only options on the command line count, not the environment. Exit code 3 when bytes may be left.
    """
    context = click.get_current_context()
    from_command_line = click.core.ParameterSource.COMMANDLINE
    scope = {
        part: getattr(caller, part) for part in _SCOPE_PARTS if context.get_parameter_source(part) is from_command_line
    }
    if not scope:
        raise BadInput("name what to erase: --user, --session, --agent or --tenant")
    subject = ", ".join(f"{part} {name}" for part, name in scope.items())
    if not yes:
        if caller.as_json or not sys.stdin.isatty():
            raise BadInput(f"this erases everything of {subject} and cannot be undone; confirm with --yes")
        click.confirm(f"Erase everything of {subject}? This cannot be undone.", abort=True)
    receipt = caller.use_existing_memory(lambda m: m.erase(**scope, thorough=thorough))
    caller.print_result({**receipt.as_json(), "nothing_held": receipt.found_nothing}, str(receipt))
    if receipt.found_nothing:
        print_error(
            f"nothing was stored for {subject}; check the spelling and the store. The receipt is valid: if an older "
            "copy with data is restored, the data is erased there"
        )
    if not receipt.complete:
        if not caller.as_json:
            print_text(
                "bytes may be left in the files; run `recollect finish-erasures` or `recollect lifecycle` later to "
                "complete the erasure"
            )
        raise typer.Exit(FAILED)


def finish_erasures(*, caller: CliContext) -> None:
    """Complete the pending erasures of all users and print their receipts.

    A file is rewritten even if it is larger than the setting `vacuum_limit_mb`; writers wait meanwhile. Exit code 3
    when an erasure is still pending.
    """
    from recollect.portability.restore import finish_erasures as finish_pending

    receipts = asyncio.run(finish_pending(caller.get_existing_store()))
    texts = [str(receipt) for receipt in receipts] or ["no erasure is pending"]
    caller.print_result([receipt.as_json() for receipt in receipts], "\n".join(texts))
    if not all(receipt.complete for receipt in receipts):
        raise typer.Exit(FAILED)


def verify_erasure(
    receipt: Annotated[str, typer.Argument(help="A file with a receipt as `erase --json` prints it, `-`, or its id.")],
    *,
    caller: CliContext,
) -> None:
    """Verify a receipt: recompute its chain, and search all bytes again for what was erased."""

    async def verify(memory: AgentMemory) -> Any:
        return await memory.verify_erasure(await _load_receipt(memory, receipt))

    result = caller.use_existing_memory(verify)
    scan = result.scan
    if caller.as_json:
        print_json({"holds": result.holds, "faults": result.faults, "scan": scan})
    elif result.holds:
        pieces, files = format_count(scan.pieces, "piece"), format_count(scan.files, "file")
        searched = f"{pieces} looked for in {scan.bytes:,} bytes of {files}, none found"
        print_text(f"it holds: {searched if scan.files else 'the chain of receipts is intact'}")
        if scan.shared:
            print_text(f"{scan.shared} of them are in what is kept now: stored by other users, or stored again since")
        for place in scan.unseen:
            print_text(f"not seen: {place}")
    else:
        print_text("\n".join(f"it does not hold: {fault}" for fault in result.faults))
    if not result.holds:
        raise typer.Exit(FAILED)


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `recollect backup` wrote.")],
    *,
    to: Annotated[Path, typer.Option("--to", help="The path of the store: a new file.")],
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="The file of erasures that lay beside the store.")
    ] = None,
    caller: CliContext,
) -> None:
    """Restore a backup, and repeat the later erasures that the file of receipts lists."""
    from recollect.portability.restore import restore_store

    result = asyncio.run(restore_store(backup, to, receipts))
    replayed = "1 erasure was" if len(result.replayed) == 1 else f"{len(result.replayed):,} erasures were"
    caller.print_result(
        {"path": result.path, "replayed": result.replayed, "known": result.known, "receipts": result.receipts},
        f"restored to {result.path}; {replayed} made again, of {result.known:,} known",
    )
    if not result.receipts:
        print_error(
            f"no file of erasures was given, and there is none at {result.path}.erasures.jsonl: users who were erased "
            f"after the backup was made are in {result.path} again. If the original store still has its "
            f"STORE.erasures.jsonl, delete {result.path} and restore again with --receipts STORE.erasures.jsonl"
        )


async def _load_receipt(memory: AgentMemory, source: str) -> ErasureReceipt:
    from recollect.stores.erasure import ErasureReceipt

    path = Path(source)
    if source != "-" and not await asyncio.to_thread(path.is_file):
        for receipt in await memory.erasures():
            if receipt.id == source:
                return receipt
        raise NotFound(f"there is no file {source}, and no erasure with this id in the store")
    text = sys.stdin.read() if source == "-" else await asyncio.to_thread(path.read_text, "utf-8")
    try:
        return ErasureReceipt.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not a receipt: {error}; `recollect erase --json` prints one") from error
