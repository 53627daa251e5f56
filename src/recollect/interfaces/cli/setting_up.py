"""The commands about this machine: the local model, the settings in force, the version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from recollect import __version__
from recollect.interfaces.cli.grouping import Group
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import print_json, progress_bar, say
from recollect.settings import Settings, effective

Json = Annotated[bool, typer.Option("--json", help="Print JSON, also of an error.")]

config_app = typer.Typer(cls=Group, no_args_is_help=True, help="Look at the settings.")


@config_app.callback()
def settings() -> None:
    """Look at the settings."""


def add_commands(app: typer.Typer, panel: str) -> None:
    app.command(rich_help_panel=panel)(setup)
    app.add_typer(config_app, name="config", rich_help_panel=panel)
    app.command(rich_help_panel=panel)(version)


def setup(*, as_json: Json = False) -> None:
    """Set the local embedding model up on this machine, once. Nothing is downloaded at run time."""
    from recollect.inference.connect import install_local_model

    with progress_bar(as_json) as bar:
        task = bar.add_task("local model", total=100)
        where = install_local_model(
            lambda stage, share: bar.update(task, description=stage, completed=round(100 * share))
        )
        bar.update(task, completed=100)
    print_json({"path": str(where)}) if as_json else say(f"The local model is ready in {where}.")


@config_app.command("show")
@command
def config_show(*, caller: Caller) -> None:
    """Print the effective settings, and where each came from: an option, the environment, recollect.toml, a default."""
    options = effective(given={"store": caller.store})
    Settings.load(store=caller.store)  # complains about a value that nothing could use
    if caller.as_json:
        print_json({name: {"value": _plain(value), "from": origin} for name, (value, origin) in options.items()})
        return
    width = max(map(len, options))
    for name, (value, origin) in options.items():
        shown = ", ".join(tier.name for tier in value) if name == "tiers" else str(_plain(value))
        say(f"{name:>{width}}  {shown or '-'}  ({origin})")


def version(*, as_json: Json = False) -> None:
    """Print the version."""
    print_json({"version": __version__}) if as_json else say(__version__)


def _plain(value: Any) -> Any:
    return {tier.name: asdict(tier) for tier in value} if isinstance(value, tuple) else value
