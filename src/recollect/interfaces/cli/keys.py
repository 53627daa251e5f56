"""The commands for the key of a store: make one, encrypt with it, give another, or do without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recollect.interfaces.cli.grouping import Group
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import aside, print_json, say

if TYPE_CHECKING:
    from typing import Literal

key_app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Encrypt a store, give it another key, or decrypt it. Nobody may have it open.",
)


@key_app.command("new")
@command
def new(
    file: Annotated[Path, typer.Argument(help="Where the key is to be: a new file that only you can read.")],
    *,
    caller: Caller,
) -> None:
    """Make a key at random. Keep a copy where the store's backups are not: nobody can read the store without it."""
    from recollect.stores.connect import new_key

    path = new_key(file)
    if caller.as_json:
        print_json({"path": str(path)})
    else:
        say(f"a new key is in {_near(path)}; set encryption_key_file to it, or RECOLLECT_ENCRYPTION_KEY_FILE")


@key_app.command("set")
@command
def set_key(*, caller: Caller) -> None:
    """Encrypt a store with the key in the settings. Backups made before are not encrypted: delete them."""
    _changed(caller, "set", "encrypted")


@key_app.command("rotate")
@command
def rotate(
    *,
    to: Annotated[Path, typer.Option("--to", help="The file with the new key, as `recollect key new` makes it.")],
    caller: Caller,
) -> None:
    """Give a store the key in another file. Backups made before keep the old key, and without it cannot be read."""
    _changed(caller, to, "encrypted with the new key")


@key_app.command("remove")
@command
def remove(*, caller: Caller) -> None:
    """Decrypt a store; then take the key out of the settings."""
    _changed(caller, "remove", "decrypted")


def _changed(caller: Caller, change: Literal["set", "remove"] | Path, done: str) -> None:
    from recollect.settings import Settings
    from recollect.stores.connect import change_keys

    changed = change_keys(caller.existing(), Settings.load(), change)
    if caller.as_json:
        print_json({"changed": [str(path) for path in changed]})
        return
    for path in changed:
        say(f"{done}: {_near(path)}")
    if changed and change == "set":
        aside("backups and exports that were made before are as they were: delete them")
    elif changed and change == "remove":
        aside("now take encryption_key and encryption_key_file out of the settings")
    elif changed:
        aside(f"now set encryption_key_file to {change}; backups that were made before need the old key")
    if not changed:
        say(f"nothing to do: it is {done} already")


def _near(path: Path) -> Path:
    """As a person here would write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
