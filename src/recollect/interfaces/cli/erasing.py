"""The commands that erase for good, prove it, and keep it so when an older copy is restored."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from recollect.errors import BadInput, NotFound
from recollect.interfaces.cli.counting import told
from recollect.interfaces.cli.opening import FAILED, Caller, command
from recollect.interfaces.cli.output import complain, print_json, say

if TYPE_CHECKING:
    from recollect.lifecycle import ErasureReceipt
    from recollect.memory import AgentMemory

_PARTS = ("tenant", "user", "agent", "session")


def add_commands(app: typer.Typer, panel: str) -> None:
    for name, function in (
        ("erase", erase),
        ("verify-erasure", verify_erasure),
        ("finish-erasures", finish_erasures),
        ("restore", restore),
    ):
        app.command(name, rich_help_panel=panel)(command(function))


def erase(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; there is no way back.")] = False,
    caller: Caller,
) -> None:
    """Erase everything of a user, session, agent or tenant, in every tier, and print the receipt.

    Who is named on the command line is erased; the environment names nobody. Exit code 3 when bytes may be left.
    """
    whom = _named(caller)
    if not whom:
        raise BadInput("name whom to erase: --user, --session, --agent or --tenant")
    named = ", ".join(f"{part} {name}" for part, name in whom.items())
    if not yes:
        if caller.as_json or not sys.stdin.isatty():
            raise BadInput(f"this erases everything of {named}, for good; say --yes")
        click.confirm(f"Erase everything of {named}, for good?", abort=True)
    receipt = caller.known(lambda m: m.erase(**whom))
    nothing = receipt.found_nothing
    # Beside the receipt, which says as much by its counts: whoever verifies it passes over what it does not know.
    print_json({**receipt.as_json(), "nothing_held": nothing}) if caller.as_json else say(str(receipt))
    if nothing:
        complain(
            f"nothing was held of {named}: see that the name is spelt as it was given, and that this is the store. The "
            "receipt stands: should an older copy be restored that holds something, it is erased there"
        )
    if not receipt.complete:
        if not caller.as_json and not receipt.scan.waits:
            say("bytes may be left while somebody reads from before; then go on with `recollect lifecycle`")
        raise typer.Exit(FAILED)


def verify_erasure(
    receipt: Annotated[str, typer.Argument(help="A file with a receipt as `erase --json` prints it, `-`, or its id.")],
    *,
    caller: Caller,
) -> None:
    """Check a receipt: recompute its chain, and look for what was erased in every byte once more."""

    async def verified(memory: AgentMemory) -> Any:
        return await memory.verify_erasure(await _receipt(memory, receipt))

    found = caller.known(verified)
    scan = found.scan
    if caller.as_json:
        print_json({"holds": found.holds, "faults": list(found.faults), "scan": scan.as_json()})
    elif found.holds:
        looked, files = told(scan.pieces, "piece"), told(scan.files, "file")
        say(f"it holds: {looked} looked for in {scan.bytes:,} bytes of {files}, none found")
        if scan.shared:
            say(f"{scan.shared} of them are in what is kept now: others say the same, or it was told or imported again")
        for said in scan.unseen:
            say(f"not seen: {said}")
    else:
        say("\n".join(f"it does not hold: {fault}" for fault in found.faults))
    if not found.holds:
        raise typer.Exit(FAILED)


def finish_erasures(*, caller: Caller) -> None:
    """Go on with erasures that wait for a store's files, in that store alone: the directory of a stopped Chroma, say.

    Exit code 3 when one of them still waits.
    """
    from recollect.memory import finish_erasures as finish
    from recollect.settings import Settings

    done = asyncio.run(finish(caller.existing() or Settings.load().store))
    if caller.as_json:
        print_json([receipt.as_json() for receipt in done])
    else:
        say("\n".join(map(str, done)) or "nothing waits")
    if not all(receipt.complete for receipt in done):
        raise typer.Exit(FAILED)


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `recollect backup` wrote.")],
    *,
    to: Annotated[Path, typer.Option("--to", help="Where the store is to be: a new file.")],
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="The file of erasures that lay beside the store.")
    ] = None,
    caller: Caller,
) -> None:
    """Put a backup in its place, and erase from it what was erased since it was made."""
    from recollect.memory import restore_store

    done = asyncio.run(restore_store(backup, to, receipts))
    if caller.as_json:
        told = {"path": str(done.path), "replayed": [one.as_json() for one in done.replayed], "known": done.known}
        print_json({**told, "receipts": [str(one) for one in done.receipts]})
    else:
        again = "1 erasure was" if len(done.replayed) == 1 else f"{len(done.replayed):,} erasures were"
        say(f"restored to {done.path}; {again} made again, of {done.known:,} known")
    if not done.receipts:
        complain(
            f"no file of erasures was named, and none lies at {done.path}.erasures.jsonl: whoever was erased since the "
            f"backup was made is in {done.path} again. If STORE.erasures.jsonl is still there, of the store that the "
            f"backup is of, delete {done.path} and restore again with --receipts STORE.erasures.jsonl"
        )


def _named(caller: Caller) -> dict[str, str]:
    """Whom the command line itself names: what the environment says for every command is no wish to erase."""
    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    return {part: getattr(caller, part) for part in _PARTS if context.get_parameter_source(part) is given}


async def _receipt(memory: AgentMemory, given: str) -> ErasureReceipt:
    from recollect.lifecycle import ErasureReceipt

    path = Path(given)
    if given != "-" and not await asyncio.to_thread(path.is_file):
        for one in await memory.erasures():
            if one.id == given:
                return one
        raise NotFound(f"there is no file {given}, and no erasure of that id in this store")
    text = sys.stdin.read() if given == "-" else await asyncio.to_thread(path.read_text, "utf-8")
    try:
        return ErasureReceipt.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{given} is no receipt: {error}; `recollect erase --json` prints one") from error
