"""Commands for the encryption key of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recollect.cli.context import CliContext, SubcommandApp
from recollect.cli.output import print_hint, print_json, print_text

if TYPE_CHECKING:
    from typing import Literal

key_app = SubcommandApp("Encrypt a store, change its key, or decrypt it. No other process may have it open.")


@key_app.add("new")
def create_key(
    file: Annotated[Path, typer.Argument(help="A new file for the key, readable only by you.")], *, caller: CliContext
) -> None:
    """Create a random key. Keep a copy apart from the store's backups: without the key the store cannot be read."""
    from recollect.stores.factory import create_key

    path = create_key(file)
    caller.print_result(
        {"path": str(path)},
        f"a new key is in {_shorten_path(path)}; set encryption_key_file to it, or RECOLLECT_ENCRYPTION_KEY_FILE",
    )


@key_app.add("set")
def set_key(*, caller: CliContext) -> None:
    """Encrypt a store with the key in the settings. Older backups are not encrypted: delete them."""
    hint = "backups and exports that were made before are not encrypted: delete them"
    _change_key(caller, "set", "encrypted", hint)


@key_app.add("rotate")
def rotate_key(
    *,
    to: Annotated[Path, typer.Option("--to", help="The file with the new key, as `recollect key new` creates it.")],
    caller: CliContext,
) -> None:
    """Encrypt a store with the key in another file. Older backups need the old key."""
    hint = f"now set encryption_key_file to {to}; backups that were made before need the old key"
    _change_key(caller, to, "encrypted with the new key", hint)


@key_app.add("remove")
def remove_key(*, caller: CliContext) -> None:
    """Decrypt a store; then remove the key from the settings."""
    _change_key(caller, "remove", "decrypted", "now remove encryption_key and encryption_key_file from the settings")


def _change_key(caller: CliContext, change: Literal["set", "remove"] | Path, outcome: str, hint: str) -> None:
    from recollect.settings import Settings
    from recollect.stores.factory import change_keys

    changed = change_keys(caller.get_existing_store(), Settings.load(), change)
    if caller.as_json:
        print_json({"changed": [str(path) for path in changed]})
        return
    for path in changed:
        print_text(f"{outcome}: {_shorten_path(path)}")
    if changed:
        print_hint(hint)
    else:
        print_text(f"nothing to do: it is {outcome} already")


def _shorten_path(path: Path) -> Path:
    """Return the path relative to the current directory if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
