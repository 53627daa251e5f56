"""The commands for facts: kept, found, listed, forgotten, and merged where they say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.clock import system_clock
from recollect.errors import BadInput, BadQuery, NotFound
from recollect.guard.policy import SENSITIVE
from recollect.interfaces.cli.counting import told
from recollect.interfaces.cli.left_out import heard_of_secrets, told_of_secrets
from recollect.interfaces.cli.opening import NOT_FOUND, NOWHERE, Caller, command
from recollect.interfaces.cli.output import (
    aside,
    complain,
    hit_json,
    item_json,
    item_line,
    print_json,
    progress_bar,
    say,
)
from recollect.interfaces.cli.piped import facts_in, standard_input
from recollect.interfaces.cli.short_ids import SHORTEST, whole_id
from recollect.settings import Settings
from recollect.values import Context, MemoryItem, Scope

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.tiers.facts import FactOptions

_PAGE = 20
_TOGETHER = 256


def add_commands(app: typer.Typer, panel: str) -> None:
    for name, function in (
        ("remember", remember),
        ("recall", recall),
        ("list", list_facts),
        ("history", history),
        ("forget", forget),
        ("consolidate", consolidate),
    ):
        app.command(name, rich_help_panel=panel)(command(function))


def remember(
    content: Annotated[str, typer.Argument(help="What to remember; `-` reads standard input.")],
    *,
    lines: Annotated[bool, typer.Option("--lines", help="Of standard input, every line is a fact.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help='Of standard input, every line is JSON: {"content": …, "key": …, …}.')
    ] = False,
    importance: Annotated[float | None, typer.Option(help="From 0 to 1; scored when not given.")] = None,
    key: Annotated[str | None, typer.Option(help="A keyed fact: a new value supersedes the old one.")] = None,
    source: Annotated[str, typer.Option(help="Where it comes from; what is not from `user` is trusted less.")] = "user",
    trust: Annotated[float | None, typer.Option(help="From 0 to 1; by its source when not given.")] = None,
    pinned: Annotated[bool | None, typer.Option("--pinned/--unpinned", help="Never faded or forgotten.")] = None,
    caller: Caller,
) -> None:
    """Store a fact, or with `-` a text that is piped in: whole, or line by line with --lines or --jsonl."""
    if (lines or jsonl) and content != "-":
        raise BadInput("--lines and --jsonl are for standard input: give `-` for the content")
    if lines and jsonl:
        raise BadInput("a line is either the fact itself or JSON: give --lines or --jsonl, not both")
    if lines or jsonl:
        if key is not None:
            raise BadInput("with one --key every line would supersede the one before; give keys in --jsonl")
        given = {"importance": importance, "source": source, "trust": trust, "pinned": pinned}
        options = {name: value for name, value in given.items() if value is not None}
        _remember_many(caller, facts_in(standard_input(), options, _checked(caller), as_json=jsonl))
        return
    text = standard_input() if content == "-" else content
    said: FactOptions = {"importance": importance, "key": key, "source": source, "trust": trust, "pinned": pinned}
    _checked(caller)({"content": text, **said})
    with heard_of_secrets() as gone:
        item = caller.memory(lambda m: m.remember(text, **said))
    if caller.as_json:
        print_json({**_kept_json(item), "redacted": gone})
        return
    held = item.tier == "quarantine"
    say(f"in quarantine {item.id}" if held else f"remembered {item.id}")
    if held:
        aside(f"it gives orders, or would change what is trusted more; see `{_look(caller)}`")
    if gone:
        aside(told_of_secrets(gone))
    _tell_if_not_kept(caller)


def _look(caller: Caller) -> str:
    """The command that shows what was held back: it is one user's."""
    return "recollect quarantine list" + (f" --user {caller.user}" if caller.user != "default" else "")


def _kept_json(item: MemoryItem) -> dict[str, Any]:
    """What was held back is told as `quarantine list` tells it."""
    from recollect.tiers.quarantine import quarantined

    if item.tier != "quarantine":
        return item_json(item)
    one = quarantined(item)
    return {**item_json(one.item), "why": list(one.why)}


def _checked(caller: Caller) -> Callable[[Mapping[str, Any]], None]:
    """A check of what is to be kept, before a store is opened: what is refused leaves no new file behind."""
    from recollect.tiers.drafts import drafted
    from recollect.tiers.facts import fact_of

    settings, now = Settings.load(), system_clock()
    scope = Scope(caller.tenant, caller.user, caller.agent, caller.session)

    def check(fact: Mapping[str, Any]) -> None:
        options = {name: value for name, value in fact.items() if name != "content"}
        drafted(fact_of(fact.get("content"), options), scope, settings, now)

    return check


def _tell_if_not_kept(caller: Caller) -> None:
    place = caller.store if caller.store is not None else Settings.load().store_of("semantic")
    if place == NOWHERE:
        aside(f"{NOWHERE} keeps nothing: it was gone when this command ended; --store FILE keeps it")


def _remember_many(caller: Caller, facts: list[dict[str, Any]]) -> None:
    with progress_bar(caller.as_json) as bar, heard_of_secrets() as gone:
        task = bar.add_task("remembering", total=len(facts))

        async def keep(memory: AgentMemory) -> list[MemoryItem]:
            kept: list[MemoryItem] = []
            for start in range(0, len(facts), _TOGETHER):
                kept += await memory.semantic.add_many(facts[start : start + _TOGETHER])
                bar.update(task, completed=len(kept))
            return kept

        items = caller.memory(keep)
    if caller.as_json:
        told_of = [_kept_json(item) for item in items]
        print_json([{**one, "redacted": _redacted(one["metadata"], gone)} for one in told_of])
    else:
        held = {item.id for item in items if item.tier == "quarantine"}
        kept = {item.id for item in items} - held
        say(f"remembered {told(len(kept), 'fact')} from {told(len(items), 'line')}")
        if held:
            aside(f"{told(len(held), 'text')} in quarantine; see `{_look(caller)}`")
        if gone:
            aside(told_of_secrets(gone))
        _tell_if_not_kept(caller)


def _redacted(metadata: Mapping[str, Any], gone: list[str]) -> list[str]:
    """Of what was left out of many, the kinds that are noted of this one."""
    return [kind for kind in gone if kind in metadata.get(SENSITIVE, ())]


def recall(
    query: Annotated[str, typer.Argument(help="What to look for; `-` reads standard input.")],
    *,
    n: Annotated[int, typer.Option("-n", help="At most so many hits of each tier.")] = 5,
    min_relevance: Annotated[float | None, typer.Option(help="From 0 to 1; 0 shows everything.")] = None,
    budget: Annotated[int | None, typer.Option(help="Tokens the answer may cost.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="What was true then: 2026-11-12, or with a time and a zone, 2026-11-12T09:30Z.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each line is there.")] = False,
    caller: Caller,
) -> None:
    """Show what matters for a query. Exit code 1 when nothing does."""
    moment = None if as_of is None else _moment(as_of)
    asked = standard_input() if query == "-" else query
    context = caller.known(lambda m: m.recall(asked, n, min_relevance=min_relevance, budget=budget, as_of=moment))
    if caller.as_json:
        print_json(_recalled(context))
    elif explain:
        say(context.explain())
    elif context:
        say(str(context))
    else:
        complain(f"nothing relevant is remembered for user {caller.user!r}{_nearer(min_relevance)}")
    if not caller.as_json and not explain:
        for warning in context.warnings:
            complain(warning)
    if not context:
        raise typer.Exit(NOT_FOUND)


def _nearer(min_relevance: float | None) -> str:
    return "" if min_relevance == 0 else "; --min-relevance 0 shows what was near"


def forget(
    id: Annotated[
        str | None, typer.Argument(help=f"The item's id, or its first characters: {SHORTEST} or more.")
    ] = None,
    *,
    source: Annotated[
        str | None, typer.Option(help="Instead: all that came from a page, a site or a tool, and was made of it.")
    ] = None,
    caller: Caller,
) -> None:
    """Drop one item, or with --source all that came from there. Exit code 1 when there is nothing to drop."""
    if (id is None) == (source is None):
        raise BadInput("give the id of an item, or --source with an address or a name, and not both")
    if source is not None:
        _forget_source(source, caller)
        return
    assert id is not None

    async def drop(memory: AgentMemory) -> tuple[str, bool]:
        whole = await whole_id(memory, id)
        return whole, await memory.forget(whole)

    whole, done = caller.known(drop)
    if caller.as_json:
        print_json({"id": whole, "forgotten": done})
    elif done:
        say(f"forgot {whole}")
    else:
        complain(f"there is no item {id}")
    if not done:
        raise typer.Exit(NOT_FOUND)


def _forget_source(source: str, caller: Caller) -> None:
    gone = caller.known(lambda m: m.forget_source(source))
    if caller.as_json:
        print_json(
            {
                "source": gone.source,
                "items": list(gone.items),
                "procedures": list(gone.procedures),
                "entries": list(gone.entries),
                "restored": list(gone.restored),
            }
        )
    elif gone:
        say(
            f"forgot {told(len(gone.items), 'fact')}, {told(len(gone.entries), 'line')} of logs and "
            f"{told(len(gone.procedures), 'procedure')}; {told(len(gone.restored), 'fact')} "
            f"{'holds' if len(gone.restored) == 1 else 'hold'} again"
        )
    else:
        complain(f"nothing here came from {source}")
    if not gone:
        raise typer.Exit(NOT_FOUND)


def history(key: Annotated[str, typer.Argument(help="The key of a fact.")], *, caller: Caller) -> None:
    """Show every value a key has had, newest first. Exit code 1 when it never had one."""
    values = caller.known(lambda m: m.semantic.history(key))
    if not values:
        raise NotFound(f"nothing was ever remembered under the key {key!r}")
    if caller.as_json:
        print_json([item_json(item) for item in values])
        return
    for item in values:
        say(f"{_times(item)}  {item_line(item)}")


def list_facts(
    *,
    limit: Annotated[int, typer.Option(help="How many to a page.")] = _PAGE,
    after: Annotated[str | None, typer.Option(help="The id of the last one of the page before.")] = None,
    past: Annotated[bool, typer.Option("--past", help="Also what is no longer true.")] = False,
    caller: Caller,
) -> None:
    """List facts page by page, newest first."""
    if limit < 1:
        raise BadInput(f"--limit is a whole number from 1, not {limit}")
    items = caller.known(lambda m: m.semantic.page(limit, after=after, past=past))
    if caller.as_json:
        print_json([item_json(item) for item in items])
        return
    for item in items:
        say(f"{item.id}  {item.created_at:%Y-%m-%d}  {item_line(item)}")
    if items and len(items) == limit:
        aside(f"for the next page: --after {items[-1].id}")
    if not items:
        aside(f"no {'more ' if after else ''}facts here for user {caller.user!r}")


def consolidate(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be merged, and change nothing.")] = False,
    caller: Caller,
) -> None:
    """Merge facts that say the same; the best of them stays, and the others are its history."""
    with progress_bar(caller.as_json) as bar:
        task = bar.add_task("comparing", total=None)
        report = caller.known(
            lambda m: m.semantic.consolidate(
                dry_run=plan, progress=lambda done, total: bar.update(task, completed=done, total=total)
            )
        )
    if caller.as_json:
        merged = [{"survivor": one.survivor, "merged": list(one.merged), "reason": one.reason} for one in report.merged]
        print_json({"planned": plan, "examined": report.examined, "merged": merged})
        return
    for one in report.merged:
        say(f"{one.survivor}  {'would take' if plan else 'took'} in {', '.join(one.merged)}  ({one.reason})")
    if not report.merged:
        say(f"nothing to merge: no two facts say the same ({report.examined:,} compared; what has a key is left alone)")
        return
    copies = sum(len(one.merged) for one in report.merged)
    into = told(len(report.merged), "other")
    say(f"{'would merge' if plan else 'merged'} {copies:,} of {told(report.examined, 'fact')} into {into}")


def _moment(text: str) -> datetime:
    """A day is its beginning where this machine is; so is a time without a zone."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise BadQuery(f"--as-of is a day or a moment such as 2026-11-12T09:30Z, not {text!r:.80}") from error


def _times(item: MemoryItem) -> str:
    since = item.valid_from or item.created_at
    return f"{since:%Y-%m-%d %H:%M} to {f'{item.valid_to:%Y-%m-%d %H:%M}' if item.valid_to else 'now':<16}"


def _recalled(context: Context) -> dict[str, object]:
    return {
        "query": context.query,
        "text": str(context),
        "tokens": context.tokens,
        "hits": [hit_json(hit) for hit in context],
        "left_out": [
            {"item": item_json(one.item), "tier": one.item.tier, "reason": one.reason} for one in context.left_out
        ],
        "warnings": list(context.warnings),
    }
