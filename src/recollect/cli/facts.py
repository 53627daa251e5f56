"""Commands for facts: remember, recall, list, history, forget, consolidate, and the review of quarantined items."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.context import MEMORY_URL, MIN_ID_PREFIX, NOT_FOUND, CliContext, SubcommandApp, resolve_id, select_id
from recollect.cli.output import (
    collect_redactions,
    format_item,
    format_redactions,
    print_error,
    print_hint,
    print_json,
    print_text,
    show_progress,
    to_json_value,
)
from recollect.clock import system_clock
from recollect.errors import BadInput, BadQuery, NotFound
from recollect.security.redaction import SENSITIVE_KEY
from recollect.settings import Settings
from recollect.types import MemoryItem, Progress, Scope
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.tiers.quarantine import QuarantinedItem

FactCheck = Callable[[Mapping[str, Any]], object]

_PAGE_SIZE = 20
_BATCH_SIZE = 256
_TIME_FIELDS = ("at", "valid_from", "valid_to")
_CONTEXT_FIELDS = ("query", "text", "tokens", "hits", "left_out", "warnings")
_MAX_QUARANTINED_IDS = 10_000
_IdArgument = Annotated[str, typer.Argument(help=f"Its id, or its first characters: {MIN_ID_PREFIX} or more.")]

quarantine_app = SubcommandApp(
    "Review quarantined items: instructions from untrusted sources, and what they would change."
)


def remember(
    content: Annotated[str, typer.Argument(help="The text to remember; `-` reads standard input.")],
    *,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a fact.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help='Each line of standard input is JSON: {"content": …, "key": …, …}.')
    ] = False,
    importance: Annotated[float | None, typer.Option(help="From 0 to 1; default: scored.")] = None,
    key: Annotated[str | None, typer.Option(help="A keyed fact: a new value supersedes the old one.")] = None,
    source: Annotated[str, typer.Option(help="The source; other sources than `user` are trusted less.")] = "user",
    trust: Annotated[float | None, typer.Option(help="From 0 to 1; default: by its source.")] = None,
    pinned: Annotated[
        bool | None, typer.Option("--pinned/--unpinned", help="The lifecycle never decays or forgets it.")
    ] = None,
    caller: CliContext,
) -> None:
    """Store a fact, or with `-` a text from standard input: whole, or line by line with --lines or --jsonl."""
    if (lines or jsonl) and content != "-":
        raise BadInput("--lines and --jsonl are for standard input: use `-` as the content")
    if lines and jsonl:
        raise BadInput("use --lines or --jsonl, not both")
    options: dict[str, Any] = {"importance": importance, "source": source, "trust": trust, "pinned": pinned}
    check = _build_fact_check(caller)
    if lines or jsonl:
        if key is not None:
            raise BadInput("with one --key, every line would supersede the previous one; put keys into --jsonl")
        defaults = {name: value for name, value in options.items() if value is not None}
        _remember_many(caller, _parse_facts(_read_standard_input(), defaults, check, as_json=jsonl))
        return
    text = _read_standard_input() if content == "-" else content
    options["key"] = key
    check({"content": text, **options})
    with collect_redactions() as redacted:
        item = caller.use_memory(lambda m: m.remember(text, **options))
    if caller.as_json:
        print_json({**_stored_item_to_json(item), "redacted": redacted})
        return
    is_quarantined = item.tier == "quarantine"
    print_text(f"in quarantine {item.id}" if is_quarantined else f"remembered {item.id}")
    if is_quarantined:
        print_hint(
            "it looks like instructions, or would override a more trusted fact; review it with "
            f"`{_build_quarantine_command(caller)}`"
        )
    _print_hints(caller, redacted)


def _remember_many(caller: CliContext, facts: list[dict[str, Any]]) -> None:
    with show_progress(caller.as_json) as progress, collect_redactions() as redacted:

        async def store(memory: AgentMemory) -> list[MemoryItem]:
            items: list[MemoryItem] = []
            progress(Progress("remembering", 0, len(facts)))
            for start in range(0, len(facts), _BATCH_SIZE):
                items += await memory.semantic.add_many(facts[start : start + _BATCH_SIZE])
                progress(Progress("remembering", len(items), len(facts)))
            return items

        items = caller.use_memory(store)
    if caller.as_json:
        results = [_stored_item_to_json(item) for item in items]
        for result in results:
            result["redacted"] = [kind for kind in redacted if kind in result["metadata"].get(SENSITIVE_KEY, ())]
        print_json(results)
        return
    quarantined = {item.id for item in items if item.tier == "quarantine"}
    stored = {item.id for item in items} - quarantined
    print_text(f"remembered {format_count(len(stored), 'fact')} from {format_count(len(items), 'line')}")
    if quarantined:
        print_hint(f"{format_count(len(quarantined), 'text')} in quarantine; see `{_build_quarantine_command(caller)}`")
    _print_hints(caller, redacted)


def _read_standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 at byte {error.start}") from error


def _parse_facts(text: str, defaults: Mapping[str, Any], check: FactCheck, *, as_json: bool) -> list[dict[str, Any]]:
    """Return one checked fact for each non-empty line; the defaults fill in what a line does not set."""
    facts = []
    # Not splitlines(): it also splits at U+2028 and others that JSON allows within a line.
    for number, line in enumerate(map(str.strip, text.split("\n")), start=1):
        if not line:
            continue
        try:
            fact = {**defaults, **(_parse_json_line(line) if as_json else {"content": line})}
            check(fact)
        except BadInput as error:
            raise BadInput(f"line {number}: {error}; nothing was stored") from error
        facts.append(fact)
    if not facts:
        raise BadInput("standard input is empty")
    return facts


def _parse_json_line(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInput(f'a line must be an object such as {{"content": "…"}}; got {type(value).__name__}')
    for name in _TIME_FIELDS:
        if isinstance(value.get(name), str):
            try:
                value[name] = datetime.fromisoformat(value[name])
            except ValueError as error:
                raise BadInput(f"{name} must be a time such as 2026-11-12T09:30Z; got {value[name]!r:.80}") from error
    return value


def _build_fact_check(caller: CliContext) -> FactCheck:
    """Return a check to run before a store is opened, so that a refused fact creates no file."""
    from recollect.tiers.facts import parse_fact
    from recollect.tiers.semantic import build_draft

    settings, now = Settings.load(), system_clock()
    scope = Scope(caller.tenant, caller.user, caller.agent, caller.session)

    return lambda fact: build_draft(parse_fact(fact), scope, settings, now)


def _stored_item_to_json(item: MemoryItem) -> dict[str, Any]:
    from recollect.tiers.quarantine import parse_quarantined_item

    return _entry_to_json(parse_quarantined_item(item)) if item.tier == "quarantine" else to_json_value(item)


def _build_quarantine_command(caller: CliContext) -> str:
    return "recollect quarantine list" + (f" --user {caller.user}" if caller.user != "default" else "")


def _print_hints(caller: CliContext, redacted: list[str]) -> None:
    if redacted:
        print_hint(format_redactions(redacted))
    store = caller.store if caller.store is not None else Settings.load().find_store("semantic")
    if store == MEMORY_URL:
        print_hint(f"{MEMORY_URL} keeps nothing: the fact is lost when the command ends; use --store FILE")


def recall(
    query: Annotated[str, typer.Argument(help="The question; `-` reads standard input.")],
    *,
    n: Annotated[int | None, typer.Option("-n", help="The maximum number of hits.")] = None,
    min_relevance: Annotated[float | None, typer.Option(help="From 0 to 1; 0 shows everything.")] = None,
    budget: Annotated[int | None, typer.Option(help="The maximum number of tokens.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Return what was true at this time, such as 2026-11-12 or 2026-11-12T09:30Z.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each line is there.")] = False,
    caller: CliContext,
) -> None:
    """Show what is relevant to a query. Exit code 1 when nothing is."""
    try:  # a time without a zone is local time
        moment = None if as_of is None else datetime.fromisoformat(as_of).astimezone()
    except (ValueError, OverflowError) as error:
        raise BadQuery(f"--as-of must be a day or a time such as 2026-11-12T09:30Z; got {as_of!r:.80}") from error
    question = _read_standard_input() if query == "-" else query
    context = caller.use_existing_memory(
        lambda m: m.recall(question, n, min_relevance=min_relevance, budget=budget, as_of=moment)
    )
    if caller.as_json:
        print_json({name: getattr(context, name) for name in _CONTEXT_FIELDS})
    elif explain:
        print_text(context.explain())
    elif context:
        print_text(str(context))
    else:
        hint = "" if min_relevance == 0 else "; --min-relevance 0 shows the nearest items"
        print_error(f"nothing relevant is remembered for user {caller.user!r}{hint}")
    if not caller.as_json and not explain:
        for warning in context.warnings:
            print_error(warning)
    if not context:
        raise typer.Exit(NOT_FOUND)


def list_facts(
    *,
    limit: Annotated[int, typer.Option(min=1, help="The number of facts per page.")] = _PAGE_SIZE,
    after: Annotated[str | None, typer.Option(help="The last id of the previous page.")] = None,
    past: Annotated[bool, typer.Option("--past", help="Also facts that are no longer true.")] = False,
    caller: CliContext,
) -> None:
    """List facts page by page, newest first."""
    items = caller.use_existing_memory(lambda m: m.semantic.page(limit, after=after, past=past))
    empty = f"no {'more ' if after else ''}facts here for user {caller.user!r}"
    caller.print_page(
        items, lambda item: f"{item.id}  {item.created_at:%Y-%m-%d}  {format_item(item)}", limit=limit, empty=empty
    )


def history(key: Annotated[str, typer.Argument(help="The key of a fact.")], *, caller: CliContext) -> None:
    """Show every value a key has had, newest first. Exit code 1 when it never had one."""
    values = caller.use_existing_memory(lambda m: m.semantic.history(key))
    if not values:
        raise NotFound(f"nothing was ever remembered under the key {key!r}")

    def format_value(item: MemoryItem) -> str:
        since = item.valid_from or item.created_at
        until = f"{item.valid_to:%Y-%m-%d %H:%M}" if item.valid_to else f"{'now':<16}"
        return f"{since:%Y-%m-%d %H:%M} to {until}  {format_item(item)}"

    caller.print_page(values, format_value, empty="")


def forget(
    id: Annotated[
        str | None, typer.Argument(help=f"The item's id, or its first characters: {MIN_ID_PREFIX} or more.")
    ] = None,
    *,
    source: Annotated[
        str | None,
        typer.Option(help="Instead: everything that came from a page, a site or a tool, and what was derived from it."),
    ] = None,
    caller: CliContext,
) -> None:
    """Delete one item, or with --source all that came from there. Exit code 1 when there is nothing to delete."""
    if (id is None) == (source is None):
        raise BadInput("give either the id of an item, or --source with an address or a name")
    if id is None:
        assert source is not None
        _forget_source(source, caller)
        return

    async def delete(memory: AgentMemory) -> tuple[str, bool]:
        full_id = await resolve_id(memory, id)
        return full_id, await memory.forget(full_id)

    full_id, is_forgotten = caller.use_existing_memory(delete)
    value = {"id": full_id, "forgotten": is_forgotten}
    caller.print_deletion(value, f"forgot {full_id}", is_done=is_forgotten, missing=f"there is no item {id}")


def _forget_source(source: str, caller: CliContext) -> None:
    forgotten = caller.use_existing_memory(lambda m: m.forget_source(source))
    facts, entries = format_count(len(forgotten.items), "fact"), len(forgotten.entries)
    procedures, restored = format_count(len(forgotten.procedures), "procedure"), len(forgotten.restored)
    caller.print_deletion(
        to_json_value(forgotten),
        f"forgot {facts}, {format_count(entries, 'log entry', 'log entries')} and {procedures}; "
        f"{format_count(restored, 'fact')} became current again",
        is_done=bool(forgotten),
        missing=f"nothing here came from {source}",
    )


def consolidate(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be merged, and change nothing.")] = False,
    caller: CliContext,
) -> None:
    """Merge facts that say the same; the best one stays, and the others become its history."""
    with show_progress(caller.as_json) as progress:
        report = caller.use_existing_memory(lambda m: m.semantic.consolidate(dry_run=plan, progress=progress))
    if caller.as_json:
        merged = [{name: getattr(merge, name) for name in ("survivor", "merged", "reason")} for merge in report.merged]
        print_json({"planned": plan, "examined": report.examined, "merged": merged})
        return
    if not report.merged:
        print_text(
            f"nothing to merge: no two facts say the same ({report.examined:,} compared; keyed facts are not merged)"
        )
        return
    for merge in report.merged:
        verb = "would take" if plan else "took"
        print_text(f"{merge.survivor}  {verb} in {', '.join(merge.merged)}  ({merge.reason})")
    copies = sum(len(merge.merged) for merge in report.merged)
    facts, survivors = format_count(report.examined, "fact"), format_count(len(report.merged), "other")
    print_text(f"{'would merge' if plan else 'merged'} {copies:,} of {facts} into {survivors}")


@quarantine_app.add("list")
def list_quarantined(
    *, limit: Annotated[int, typer.Option(help="How many, newest first.")] = 50, caller: CliContext
) -> None:
    """List the items to review, with their source and the reasons."""
    entries = caller.use_existing_memory(lambda m: m.quarantine.list(limit))

    def format_entry(entry: QuarantinedItem) -> str:
        item, reasons = entry.item, "; ".join(entry.why)
        source = f"{item.id}  {item.created_at:%Y-%m-%d}  from {item.source}  trust {item.trust:g}  {reasons}"
        return f"{source}\n    “{' '.join(item.content.split())}”"

    empty = f"nothing is in quarantine for user {caller.user!r}"
    caller.print_page(entries, format_entry, encode=_entry_to_json, empty=empty)


def _entry_to_json(entry: QuarantinedItem) -> dict[str, Any]:
    return {**to_json_value(entry.item), "why": entry.why}


@quarantine_app.add("approve")
def approve_item(
    id: _IdArgument,
    *,
    trust: Annotated[float | None, typer.Option(help="The trust it gets; default: unchanged.")] = None,
    caller: CliContext,
) -> None:
    """Turn it into a fact, after you have read it. Exit code 1 when there is no such item."""

    async def approve(memory: AgentMemory) -> MemoryItem:
        return await memory.quarantine.approve(await _resolve_quarantined_id(memory, id), trust=trust)

    item = caller.use_existing_memory(approve)
    caller.print_result(item, f"approved {item.id}")


@quarantine_app.add("drop")
def drop_item(id: _IdArgument, *, caller: CliContext) -> None:
    """Delete it. Exit code 1 when there is no such item."""

    async def drop(memory: AgentMemory) -> tuple[str, bool]:
        full_id = await _resolve_quarantined_id(memory, id)
        return full_id, await memory.quarantine.drop(full_id)

    full_id, is_dropped = caller.use_existing_memory(drop)
    missing = f"there is nothing with the id {id} in quarantine"
    caller.print_deletion(
        {"id": full_id, "dropped": is_dropped}, f"dropped {full_id}", is_done=is_dropped, missing=missing
    )


async def _resolve_quarantined_id(memory: AgentMemory, prefix: str) -> str:
    return select_id(prefix, [entry.id for entry in await memory.quarantine.list(_MAX_QUARANTINED_IDS)])
