"""Procedural memory: named procedures in versions, each with the outcomes of its trials and a success rate."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from recollect.clock import from_micros, to_micros
from recollect.errors import BadInput, Conflict, NotFound
from recollect.security.injection import AGENT_TRUST
from recollect.security.redaction import RedactionPolicy
from recollect.stores.filters import Condition, Where
from recollect.stores.writes import Model, Put
from recollect.tiers.facts import source_trust
from recollect.tiers.indexing import ItemTier, build_puts, check_limit, find_all, retry_on_conflict, with_current_model
from recollect.tiers.log_entries import check_id
from recollect.types import Hit, MemoryItem, Scope, Space, make_content_id
from recollect.validation import check_count, check_flag, check_fraction, check_name, check_number, check_text

MIN_PROCEDURE_TRUST = AGENT_TRUST
"""Text that is trusted less can be a fact, but never a procedure."""

RECENT_TRIALS = 10
MAX_NOTES = 20
MAX_TRIAL_IDS = 50

# Two-sided normal quantiles of 95 % and 99 %.
_Z_95 = 1.959964
_Z_99 = 2.575829

_MAX_TAGS = 32
# 30 years. The sum of many such numbers still has its seconds.
_MAX_SECONDS = 1e9

_IS_NEWEST = Condition("standing", "ne", "superseded")
_IS_CURRENT = Condition("standing", "eq", "current")

ProcedureStatus = Literal["current", "superseded", "retired"]


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """Share of successes with the bounds of its 95 % confidence interval; without trials 0, 0 and 1."""

    rate: float
    lower: float
    upper: float
    trials: int


@dataclass(frozen=True, slots=True)
class OutcomeNote:
    """A note about one outcome. The authors are hashed, because all users of the agent can read the note."""

    at: datetime
    success: bool
    text: str
    author_hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialOutcomes:
    """Statistics of the trials of a procedure. Their size does not grow with the number of trials."""

    trials: int = 0
    successes: int = 0
    recent: tuple[bool, ...] = ()
    """The newest outcomes, newest last."""
    bar: float | None = None
    """The rate that the recent outcomes must reach; None unless demoted."""
    timed: int = 0
    seconds: float = 0.0
    """The sum over the timed trials."""
    last_at: datetime | None = None
    notes: tuple[OutcomeNote, ...] = ()
    counted: tuple[str, ...] = ()
    """The ids of the newest trials, which are not counted again."""

    @property
    def demoted(self) -> bool:
        return self.bar is not None

    @property
    def success_rate(self) -> SuccessRate:
        return wilson_interval(self.successes, self.trials)

    @property
    def recent_rate(self) -> SuccessRate:
        return wilson_interval(sum(self.recent), len(self.recent))

    @property
    def mean_seconds(self) -> float | None:
        return self.seconds / self.timed if self.timed else None

    def add_trial(
        self,
        success: bool,
        at: datetime,
        *,
        seconds: float | None = None,
        note: str | None = None,
        id: str | None = None,
        by: tuple[str, ...] = (),
    ) -> TrialOutcomes:
        """Return the statistics with one more trial; unchanged if the id is counted already."""
        if id is not None and id in self.counted:
            return self
        outcomes = replace(
            self,
            trials=self.trials + 1,
            successes=self.successes + success,
            recent=(*self.recent, success)[-RECENT_TRIALS:],
            timed=self.timed + (seconds is not None),
            seconds=self.seconds + (seconds or 0.0),
            last_at=at if self.last_at is None else max(at, self.last_at),
            notes=self.notes if note is None else (*self.notes, OutcomeNote(at, success, note, by))[-MAX_NOTES:],
            counted=self.counted if id is None else (*self.counted, id)[-MAX_TRIAL_IDS:],
        )
        return replace(outcomes, bar=_compute_bar(outcomes))


def hash_author(user: str, session: str | None = None) -> str:
    """Return the hash of a user, or of one of their sessions, for `OutcomeNote.author_hashes`."""
    return hashlib.blake2b(json.dumps([user, session]).encode(), digest_size=12).hexdigest()


def wilson_interval(successes: int, trials: int, deviations: float = _Z_95) -> SuccessRate:
    """Return the rate with the bounds of Wilson's score interval, which needs no prior and suits few trials."""
    if trials == 0:
        return SuccessRate(0.0, 0.0, 1.0, 0)
    rate = successes / trials
    square = deviations * deviations
    center = (successes + square / 2) / (trials + square)
    reach = deviations * math.sqrt(trials * rate * (1 - rate) + square / 4) / (trials + square)
    lower = 0.0 if successes == 0 else center - reach
    return SuccessRate(rate, lower, 1.0 if successes == trials else center + reach, trials)


# An untried procedure ranks as if it had worked once in two trials.
UNTRIED_RANK = wilson_interval(1, 2).lower


def rank_outcomes(outcomes: TrialOutcomes) -> tuple[bool, float, int]:
    """Return a sort key; higher is better. Demoted procedures are last; of the others, 9 of 10 beats 1 of 1."""
    rate = outcomes.success_rate
    return not outcomes.demoted, rate.lower if rate.trials else UNTRIED_RANK, rate.trials


def estimate_success(outcomes: TrialOutcomes) -> float:
    """Return the estimated probability of success; 0.5 without trials. If demoted, only recent trials count."""
    rate = outcomes.recent_rate if outcomes.demoted else outcomes.success_rate
    return (rate.lower + rate.upper) / 2


def _compute_bar(outcomes: TrialOutcomes) -> float | None:
    """Return the bar of `TrialOutcomes`.

    A procedure is demoted if the 99 % intervals of its recent and its earlier outcomes do not overlap. The rule is
    applied after each trial: within 200 trials it demotes one in twenty steady procedures, and 95 % intervals would
    demote one in three. A drop from 0.9 to 0.3 is noticed after about ten trials. The bar is stored, because a long run
    of failures would otherwise become the history that failures are compared with.
    """
    recent = sum(outcomes.recent)
    if outcomes.bar is not None:
        return None if recent >= outcomes.bar * len(outcomes.recent) else outcomes.bar
    before = wilson_interval(outcomes.successes - recent, outcomes.trials - len(outcomes.recent), _Z_99)
    return before.lower if wilson_interval(recent, len(outcomes.recent), _Z_99).upper < before.lower else None


# Fields of `TrialOutcomes` that are stored as they are.
_PLAIN_FIELDS = ("trials", "successes", "bar", "timed", "seconds")


def outcomes_to_json(outcomes: TrialOutcomes) -> dict[str, Any]:
    return {
        **{name: getattr(outcomes, name) for name in _PLAIN_FIELDS},
        "recent": "".join("1" if success else "0" for success in outcomes.recent),
        "last_at": None if outcomes.last_at is None else to_micros(outcomes.last_at),
        "notes": [[to_micros(note.at), note.success, note.text, *note.author_hashes] for note in outcomes.notes],
        **({"counted": list(outcomes.counted)} if outcomes.counted else {}),
    }


def outcomes_from_json(data: Mapping[str, Any]) -> TrialOutcomes:
    return TrialOutcomes(
        **{name: data[name] for name in _PLAIN_FIELDS},
        recent=tuple(success == "1" for success in data["recent"]),
        last_at=None if data["last_at"] is None else from_micros(data["last_at"]),
        notes=tuple(
            OutcomeNote(from_micros(at), success, text, tuple(hashes)) for at, success, text, *hashes in data["notes"]
        ),
        counted=tuple(data.get("counted", ())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """One version of a procedure, with the outcomes of its trials."""

    id: str
    key: str
    version: int
    body: str
    description: str
    tags: tuple[str, ...]
    source: str
    trust: float
    created_at: datetime
    standing: ProcedureStatus = "current"
    restored_from: int | None = None
    """The older version that a rollback restored as this one, with its outcomes."""
    outcomes: TrialOutcomes = field(default_factory=TrialOutcomes)

    @property
    def current(self) -> bool:
        return self.standing == "current"

    @property
    def retired(self) -> bool:
        return self.standing == "retired"

    @property
    def demoted(self) -> bool:
        return self.outcomes.demoted

    @property
    def success_rate(self) -> SuccessRate:
        return self.outcomes.success_rate


class ProceduralMemory(ItemTier):
    """Procedures of one agent, as `AgentMemory.procedural`.

    Each version is an item. The newest version of a key is current, or retired with its key.
    """

    _tier = "procedural"

    async def save(
        self,
        key: str,
        body: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        source: str = "user",
        trust: float | None = None,
    ) -> Procedure:
        """Store a procedure; if its body changed, as a new version.

        An empty description and no tags keep the stored ones. Saving a retired procedure makes it current. Raise
        `BadInput` if `source` or `trust` is trusted less than an agent.
        """
        policy = RedactionPolicy.from_settings(self._settings)
        body = check_text("body", body, max_length=self._settings.max_content)
        procedure = Procedure(
            id="",
            key=validate_procedure_key(key),
            version=1,
            body=policy.redact_text("body", body).value,
            description=policy.redact_text("description", validate_description(description).strip()).value,
            tags=validate_tags(tags),
            source=source,
            trust=validate_procedure_trust(source, trust),
            created_at=self._clock(),
        )
        return await retry_on_conflict(lambda: self._save_version(procedure), f"the procedure {key!r}")

    async def get(self, key: str, version: int | None = None) -> Procedure | None:
        """Return a version, by default the newest, retired or not; None if there is none."""
        key = validate_procedure_key(key)
        item = await (self._find_newest(key) if version is None else self._find_version(key, version))
        return procedure_from_item(item) if item else None

    async def record_outcome(
        self, key: str, success: bool, *, note: str | None = None, seconds: float | None = None, id: str | None = None
    ) -> Procedure:
        """Count a trial of the newest version; concurrent calls are all counted.

        A trial whose `id` was counted recently is not counted again. Notes are not searched, because they often quote
        tools. `seconds` is the duration of the trial.
        """
        key = validate_procedure_key(key)
        check_flag("success", success)
        if note is not None:
            policy = RedactionPolicy.from_settings(self._settings)
            note = policy.redact_text("note", validate_note(note)).value or None
        if seconds is not None:
            seconds = check_number("seconds", seconds, maximum=_MAX_SECONDS)
        id = self._next_action_id() if id is None else check_id(id)
        scope = self._scope
        authors = tuple(hash_author(scope.user, session) for session in dict.fromkeys((None, scope.session)))

        async def count() -> Procedure:
            item = await self._require_newest(key)
            procedure, now = procedure_from_item(item), self._clock()
            outcomes = procedure.outcomes.add_trial(success, now, seconds=seconds, note=note, id=id, by=authors)
            counted = replace(procedure, outcomes=outcomes)
            if counted != procedure:
                await self._store.write(Put(item=update_procedure_item(item, counted), expect=item.version))
            return counted

        return await retry_on_conflict(count, f"the procedure {key!r}")

    async def success_rate(self, key: str) -> SuccessRate:
        """Return the success rate of the newest version with the bounds of its 95 % interval."""
        return procedure_from_item(await self._require_newest(validate_procedure_key(key))).success_rate

    async def best(self, tag: str | None = None, prefix: str | None = None, n: int = 3) -> list[Procedure]:
        """Return the procedures most sure to work, ordered as by `rank_outcomes`, without retired ones."""
        n = check_limit(n)
        procedures = await self.all(tag=tag, prefix=prefix)
        return sorted(procedures, key=lambda procedure: rank_outcomes(procedure.outcomes), reverse=True)[:n]

    async def all(self, *, tag: str | None = None, prefix: str | None = None, retired: bool = False) -> list[Procedure]:
        """Return the newest versions, sorted by key, of the procedures with a tag and a key prefix."""
        conditions = [_IS_NEWEST if retired else _IS_CURRENT]
        if prefix is not None and check_text("prefix", prefix, allow_empty=True):
            conditions.append(Condition("key", "prefix", prefix))
        if tag is not None:
            conditions.append(Condition("tags", "has", _validate_tag(tag)))
        items = await find_all(self._store, Where(self._space, conditions=tuple(conditions)))
        return sorted((procedure_from_item(item) for item in items), key=lambda procedure: procedure.key)

    async def keys(self, prefix: str | None = None) -> list[str]:
        """Return the keys of all current procedures."""
        return [procedure.key for procedure in await self.all(prefix=prefix)]

    async def search(self, query: str, n: int = 5, *, min_relevance: float | None = None) -> list[Hit]:
        """Return the current procedures that answer a query, best first; `get(hit.item.key)` has the details."""
        now = self._clock()
        hits = await self._search(query, n, min_relevance, Where(self._space, live_at=now), at=now, now=now)
        # `live_at` compares clocks, which can differ between processes; the status does not.
        return [hit for hit in hits if procedure_from_item(hit.item).current]

    async def history(self, key: str) -> list[Procedure]:
        """Return all versions of a procedure, newest first."""
        items = await find_all(self._store, Where(self._space, key=validate_procedure_key(key)))
        return sorted(map(procedure_from_item, items), key=lambda procedure: procedure.version, reverse=True)

    async def retire(self, key: str) -> bool:
        """Take a procedure out of use and keep its history; return False if there is no current one."""
        key = validate_procedure_key(key)

        async def retire_newest() -> bool:
            item = await self._find_newest(key)
            if item is None or not procedure_from_item(item).current:
                return False
            retired = update_procedure_item(item, replace(procedure_from_item(item), standing="retired"))
            await self._store.write(Put(item=replace(retired, valid_to=self._clock()), expect=item.version))
            return True

        return await retry_on_conflict(retire_newest, f"the procedure {key!r}")

    async def rollback(self, key: str, version: int) -> Procedure:
        """Restore an older version as a new one, with the outcomes of the older one."""
        key = validate_procedure_key(key)
        return await retry_on_conflict(lambda: self._restore_version(key, version), f"the procedure {key!r}")

    async def _save_version(self, procedure: Procedure) -> Procedure:
        item = await self._find_newest(procedure.key)
        if item is None:
            # 1, unless the newest version was forgotten and older ones are left.
            number = max((version.version for version in await self.history(procedure.key)), default=0) + 1
            if number > 1 and await self._find_newest(procedure.key) is not None:
                raise Conflict(f"the procedure {procedure.key!r} was saved concurrently")
            return await self._add_version(procedure, number, None)
        stored = procedure_from_item(item)
        description, tags = procedure.description or stored.description, procedure.tags or stored.tags
        if procedure.body != stored.body:
            new = replace(procedure, description=description, tags=tags)
            return await self._add_version(new, stored.version + 1, item)
        updated = replace(stored, description=description, tags=tags, standing="current")
        if updated == stored:
            return stored
        # The source stays that of the body. Less trusted text lowers the trust in the whole.
        updated = replace(updated, trust=min(stored.trust, procedure.trust))
        await self._write_item(replace(update_procedure_item(item, updated), valid_to=None), expect=item.version)
        return updated

    async def _restore_version(self, key: str, version: int) -> Procedure:
        wanted, newest = await self._find_version(key, version), await self._require_newest(key)
        if wanted is None:
            versions = ", ".join(str(procedure.version) for procedure in (await self.history(key))[:20])
            raise NotFound(f"{key!r} has no version {version}; its versions are {versions}")
        current, old = procedure_from_item(newest), procedure_from_item(wanted)
        if old.id == current.id and current.current:
            return current
        validate_procedure_trust(old.source, old.trust)
        restored = replace(old, created_at=self._clock(), standing="current", restored_from=version)
        return await self._add_version(restored, current.version + 1, newest)

    async def _add_version(self, procedure: Procedure, number: int, newest: MemoryItem | None) -> Procedure:
        """Write a new version, and the end of the one before, in one transaction."""
        added = replace(procedure, id=procedure_version_id(self._space, procedure.key, number), version=number)
        endings = []
        if newest is not None:
            old = update_procedure_item(newest, replace(procedure_from_item(newest), standing="superseded"))
            # A retired version has ended already.
            old = replace(old, valid_to=newest.valid_to or added.created_at, superseded_by=added.id)
            endings.append(Put(item=old, expect=newest.version))
        await self._write_item(procedure_to_item(added, self._scope), *endings, expect=0)
        return added

    async def _write_item(self, item: MemoryItem, *others: Put, expect: int) -> None:
        async def write(model: Model) -> None:
            await self._store.write(*await build_puts(self._embedding, model, [item], expect=expect), *others)

        await with_current_model(self._embedding, write)

    async def _find_newest(self, key: str) -> MemoryItem | None:
        items = await self._store.find(Where(self._space, key=key, conditions=(_IS_NEWEST,)), limit=1)
        return items[0] if items else None

    async def _find_version(self, key: str, version: int) -> MemoryItem | None:
        check_count("version", version, minimum=1)
        return next(iter(await self._store.get(self._space, procedure_version_id(self._space, key, version))), None)

    async def _require_newest(self, key: str) -> MemoryItem:
        item = await self._find_newest(key)
        if item is None:
            raise NotFound(f"there is no procedure {key!r}; save it first, or see `keys()`")
        return item


def procedure_version_id(space: Space, key: str, version: int) -> str:
    """Return the id of a version. It is deterministic, so of two concurrent writers one is refused."""
    return make_content_id(space, key, "version", str(version))


def procedure_to_item(procedure: Procedure, scope: Scope) -> MemoryItem:
    """Return a procedure as an item whose content is a heading and the body."""
    heading = f"{procedure.key}: {procedure.description}" if procedure.description else procedure.key
    heading += f" [{', '.join(procedure.tags)}]\n" if procedure.tags else "\n"
    return MemoryItem(
        id=procedure.id,
        content=heading + procedure.body,
        scope=scope,
        created_at=procedure.created_at,
        tier="procedural",
        metadata={
            "number": procedure.version,
            "standing": procedure.standing,
            "description": procedure.description,
            "tags": list(procedure.tags),
            "body_at": len(heading),
            "restored_from": procedure.restored_from,
            "outcomes": outcomes_to_json(procedure.outcomes),
        },
        # Search ranks by importance what is equally relevant.
        importance=estimate_success(procedure.outcomes),
        source=procedure.source,
        trust=procedure.trust,
        key=procedure.key,
    )


def update_procedure_item(item: MemoryItem, procedure: Procedure) -> MemoryItem:
    """Return the stored item with the procedure's values; scope, accesses and times stay."""
    new = procedure_to_item(procedure, item.scope)
    return replace(item, content=new.content, metadata=new.metadata, importance=new.importance, trust=new.trust)


def procedure_from_item(item: MemoryItem) -> Procedure:
    metadata = item.metadata
    return Procedure(
        id=item.id,
        key=item.key or "",
        version=metadata["number"],
        body=item.content[metadata["body_at"] :],
        description=metadata["description"],
        tags=tuple(metadata["tags"]),
        source=item.source,
        trust=item.trust,
        created_at=item.created_at,
        standing=metadata["standing"],
        restored_from=metadata["restored_from"],
        outcomes=outcomes_from_json(metadata["outcomes"]),
    )


validate_procedure_key = partial(check_name, "key", max_length=256, example="deploy.staging")
validate_description = partial(check_text, "description", max_length=4_000, allow_empty=True)
validate_note = partial(check_text, "note", max_length=2_000, allow_empty=True)
_validate_tag = partial(check_name, "tag", max_length=64, example="deploy")


def validate_procedure_trust(source: Any, trust: Any) -> float:
    """Return the trust in a procedure; raise `BadInput` if it is too low for one."""
    check_text("source", source)
    value = source_trust(source) if trust is None else check_fraction("trust", trust)
    if value < MIN_PROCEDURE_TRUST:
        raise BadInput(
            f"a procedure needs a trust of at least {MIN_PROCEDURE_TRUST:g}; text from {source!r:.80} is trusted "
            f"{value:g}. Untrusted content never becomes or changes a procedure: review it, and save it as your own"
        )
    return value


def validate_tags(tags: Any) -> tuple[str, ...]:
    """Return the tags without duplicates, in order."""
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise BadInput(f"tags must be a list of strings such as ['deploy']; got {tags!r:.80}")
    unique = tuple(dict.fromkeys(_validate_tag(tag) for tag in tags))
    check_count("the number of tags", len(unique), maximum=_MAX_TAGS)
    return unique
