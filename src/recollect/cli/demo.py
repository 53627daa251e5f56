"""`recollect demo`: six scenes, offline, each played in a separate process, with every claim checked.

A scene is a function of the stage and the memory in its process; `show_…` plays a scene of two processes.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from recollect import __version__
from recollect.cli.context import FAILED, CliContext
from recollect.cli.output import OutputConsole, print_error, print_json
from recollect.errors import BadInput, RecollectError, StoreUnavailable
from recollect.settings import ENV_PREFIX

if TYPE_CHECKING:
    from recollect.sync import AgentMemory

_MAX_WIDTH = 88

UNITS_KEY = "ada.units"
METRIC_PREFERENCE = "Ada prefers metric units in every report."
IMPERIAL_PREFERENCE = "Ada prefers imperial units since she moved to Boston."
_UNITS_QUESTION = "Which units should the report use?"
DEMO_FACTS = (
    "The staging database listens on port 6432; production uses 5432.",
    "Never deploy on Fridays: the on-call engineer is alone.",
    "Ada's daughter Mina started school in Lisbon in September.",
)
DEMO_TURNS = (
    ("The invoice export timed out again, at 12,000 rows.", "I split it by month, and every part went through."),
    ("Please keep each file below 10 MB: the mail server refuses more.", "Understood."),
)
_ANSWERS = {
    "Should distances be in miles or kilometers?": METRIC_PREFERENCE,
    "Is it a good idea to ship before the weekend?": DEMO_FACTS[1],
    "Where does her child go to school?": DEMO_FACTS[2],
    "How did we get a large number of invoices out?": DEMO_TURNS[0][0],
}
_UNANSWERABLE_QUESTION = "What is the capital of Mongolia?"

_STEP_COUNT = 25
_KILLED_STEP = 18
_LEASE_SECONDS = 2.0  # the lease of a killed worker has to expire
_EFFECTS_FILE = "effects.txt"
# Windows has no SIGKILL; there the exit code of a killed process is the number of the signal.
_KILL_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)
KILL_CODE = _KILL_SIGNAL if os.name == "nt" else -_KILL_SIGNAL

PROCEDURE_KEY = "export.invoices"
_PROCEDURE_VERSIONS = (  # body, successes, trials
    ("Export all invoices into one file.", 1, 4),
    ("Export month by month, then join the parts.", 11, 12),
)

_GUEST = "guest"
_GUEST_FACTS = ("The guest's locker is number 4711, and the code is heliotrope.", "The guest is allergic to quinoa.")
_GUEST_MESSAGE = "Please keep it to yourself that my flight leaves at dawn."

_NEXT_STEPS = {
    "recollect chat": "talk with it, with a model of yours or without",
    'recollect remember "…"': 'store something; then: recollect recall "…"',
    "docs/quickstart.md": "the same from Python, in ten lines",
    "recollect --help": "everything else",
}


def demo(
    *,
    keep: Annotated[Path | None, typer.Option("--keep", help="A new directory for the files of the demo.")] = None,
    caller: CliContext,
) -> None:
    """See it at work, offline and without a key: learn, recall by meaning, survive a kill, change, improve, erase.

    Takes about ten seconds in a temporary directory, or where --keep or --store says; your own store is not touched.
    Every ✓ is the result of a check; exit code 3 when one of them fails.
    """
    with _create_directory(keep) as directory:
        path = Path(directory, "agent.db")
        if caller.store is not None:
            path = Path(caller.store.removeprefix("sqlite:///")).expanduser()
            if "://" in caller.store.removeprefix("sqlite:///") or path.exists():
                raise BadInput(f"--store must be a new file for the demo; got {caller.store}")
        store = str(path.resolve())
        options = {"store": store, "tenant": caller.tenant, "user": caller.user, "agent": caller.agent}
        stage = DemoStage(build_console(quiet=caller.as_json), directory, options)
        show_scenes(stage, monday=caller.session or "monday")
        if caller.as_json:
            seconds = {name: round(value, 4) for name, value in stage.timings.items()}
            print_json({"ok": not stage.failed_checks, "scenes": stage.scenes, "seconds": seconds})
        elif keep is not None or caller.store is not None:
            stage.console.print(Text(f"\nThe files are kept: {store}", "dim"))
    if failed := stage.failed_checks:
        if not caller.as_json:
            print_error(f"{len(failed)} of the checks failed")
        raise typer.Exit(FAILED)


def _create_directory(keep: Path | None) -> AbstractContextManager[str]:
    if keep is None:
        # Virus scanners may still have a file open.
        return tempfile.TemporaryDirectory(prefix="recollect-demo-", ignore_cleanup_errors=True)
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadInput(f"{keep} exists and is not an empty directory; use a new one")
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{keep} cannot be created: {error.strerror}") from error
    return nullcontext(str(keep.resolve()))


def build_console(*, quiet: bool = False) -> Console:
    console = OutputConsole(highlight=False, emoji=False, quiet=quiet)
    console.width = min(console.width, _MAX_WIDTH)
    return console


class DemoStage:
    """Runs and prints the scenes, and collects their data, checks and timings.

    `options` are those of `AgentMemory.open`, for all scenes. A scene runs in a separate process, whose calls of its
    stage are repeated here.
    """

    def __init__(self, console: Console, directory: str, options: Mapping[str, str]) -> None:
        self.console = console
        self.directory = directory
        self.options = options
        self.scenes: list[dict[str, Any]] = []
        self.timings: dict[str, float] = {}
        self.steps: list[tuple[int, float]] = []  # number and time of each start of a step

    @property
    def failed_checks(self) -> list[str]:
        return [check["text"] for scene in self.scenes for check in scene["checks"] if not check["ok"]]

    def run(self, scene: Callable[..., None], *, session: str | None = None, expected_code: int = 0) -> int:
        """Run a scene in a separate process and return its exit code; raise `RecollectError` if it fails."""
        # Without the user's settings: the demo is offline and always the same. THREADS limits the processors used.
        hidden = {name for name in os.environ if name.startswith(ENV_PREFIX)} - {f"{ENV_PREFIX}THREADS"}
        program = "from recollect.cli.demo import run_scene_process; run_scene_process()"
        done = subprocess.run(
            # -P: modules in the current directory are not imported.
            [sys.executable, "-P", "-c", program, scene.__name__, json.dumps({**self.options, "session": session})],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            cwd=self.directory,
            env={name: value for name, value in os.environ.items() if name not in hidden},
        )
        for line in done.stdout.splitlines():
            method, arguments, options = json.loads(line)
            getattr(self, method)(*arguments, **options)
        if done.returncode not in (0, expected_code):
            output = done.stderr.strip().splitlines()
            raise RecollectError(f"a process of the demo failed: {output[-1] if output else done.returncode}")
        return done.returncode

    def list_files(self) -> list[Path]:
        store = Path(self.options["store"])
        return list(store.parent.glob(f"{store.name}*"))

    def pick_mark(self, mark: str, ascii_mark: str) -> str:
        return mark if "utf" in self.console.encoding.lower() else ascii_mark

    def open_scene(self, title: str, subtitle: str) -> None:
        self.scenes.append({"title": title, "checks": []})
        self.console.print()
        self.print_line(str(len(self.scenes)), title, "bold", indent=0)
        self.print_line("", subtitle, "dim", indent=0)

    def add_data(self, **data: Any) -> None:
        self.scenes[-1].update(data)

    def add_timing(self, name: str, seconds: float) -> None:
        self.timings[name] = seconds

    def add_step(self, number: int, at: float) -> None:
        self.steps.append((number, at))

    def print_line(
        self, mark: str, text: str | Text, style: str = "", *, mark_style: str = "cyan", indent: int = 3
    ) -> None:
        """Print a mark and a text, indented and folded to the width of the console."""
        label = Text(f"{mark:<2} ", mark_style)
        content = text if isinstance(text, Text) else Text(text, style)
        for line in content.wrap(self.console, max(1, self.console.width - indent - len(label)), overflow="fold"):
            row = Text.assemble(" " * indent, label, line)
            row.rstrip()
            self.console.print(row, soft_wrap=True)
            label = Text(" " * len(label))

    def print_result(self, text: str, relevance: float | None = None) -> None:
        arrow = self.pick_mark("→", ">")
        self.print_line(arrow if relevance is None else f"{arrow} {relevance:.2f}", text, mark_style="dim", indent=5)

    def record_check(self, ok: bool, text: str) -> None:
        self.scenes[-1]["checks"].append({"text": text, "ok": ok})
        if ok:
            self.print_line(self.pick_mark("✓", "ok"), text, mark_style="green")
        else:
            self.print_line(self.pick_mark("✗", "NO"), text, "red", mark_style="bold red")

    def print_steps(self, process: str, steps: list[int], comment: str) -> None:
        square = self.pick_mark("■", "#")
        bar = "".join(square if number in steps else " " for number in range(1, _STEP_COUNT + 1))
        self.print_line(" ", f"{process:<15}{bar}  {comment}")

    def print_table(self, title: str, rows: Mapping[str, str]) -> None:
        self.console.print(Text(f"\n{title}", "bold"))
        width = max(map(len, rows))
        for name, value in rows.items():
            self.print_line("", Text.assemble(f"{name:<{width}}   ", (value, "cyan")), indent=0)


class _RemoteStage:
    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *arguments, **options: print(json.dumps([method, arguments, options]), flush=True)


def run_scene_process() -> None:
    """Run the scene in the first argument of this process, with a memory of the options in the second."""
    from recollect.sync import AgentMemory

    stage = _RemoteStage()
    try:
        with AgentMemory.open(**json.loads(sys.argv[2])) as memory:
            globals()[sys.argv[1]](stage, memory)
    except RecollectError as error:
        sys.exit(str(error))


def show_scenes(stage: DemoStage, *, monday: str = "monday") -> None:
    """Show the six scenes and their timings; the first one is in the session `monday`."""
    began = time.perf_counter()
    name = f"[bold]Recollect {__version__}[/bold]"
    stage.console.print(f"{name}: memory for agents, in one file, offline, without a key.")
    stage.open_scene("A session learns", "A process stores facts, a preference and a conversation, word for word.")
    stage.run(learn, session=monday)
    files = [path.name for path in stage.list_files()]
    stage.add_data(files=files)
    stage.record_check(files == [Path(stage.options["store"]).name], "that process has ended, and left one file")
    stage.open_scene("Another process recalls, by meaning", "It has never seen the texts, and asks in other words.")
    stage.run(recall, session="tuesday")
    show_resume(stage)
    stage.open_scene("A preference changes", "The same key, another value: the old one need not be found and deleted.")
    stage.run(change_preference)
    stage.open_scene(
        "A procedure gets better", "Every attempt counts. Few prove little, and the bounds say how little."
    )
    stage.run(improve_procedure)
    show_erasure(stage)
    stage.add_timing("the whole demo, in eight processes", time.perf_counter() - began)
    shown = {name: f"{s:.1f} s" if s >= 1 else f"{1000 * s:.1f} ms" for name, s in stage.timings.items()}
    stage.print_table("As measured just now", shown)
    stage.print_table("Where to go next", _NEXT_STEPS)


def learn(stage: DemoStage, memory: AgentMemory) -> None:
    facts, messages = [METRIC_PREFERENCE, *DEMO_FACTS], [message for message, _ in DEMO_TURNS]
    for text in (*facts, *(f"“{message}”" for message in messages)):
        stage.print_line("+", text)
    memory.remember(METRIC_PREFERENCE, key=UNITS_KEY, importance=0.8)  # loads the model
    began = time.perf_counter()
    for fact in DEMO_FACTS:
        memory.remember(fact)
    stage.add_timing("remember a fact", (time.perf_counter() - began) / len(DEMO_FACTS))
    for message, answer in DEMO_TURNS:
        memory.record_turn(message, answer)
    stage.add_data(facts=facts, turns=messages)


def recall(stage: DemoStage, memory: AgentMemory) -> None:
    tiers = memory.stats().tiers
    memory.recall("the first question loads the model")
    began = time.perf_counter()
    contexts = {question: memory.recall(question, n=1) for question in (*_ANSWERS, _UNANSWERABLE_QUESTION)}
    stage.add_timing("recall by meaning", (time.perf_counter() - began) / len(contexts))
    found: dict[str, Any] = {}
    for question, context in contexts.items():
        stage.print_line("?", question, "italic")
        if best := max(context.hits, key=lambda hit: hit.relevance, default=None):
            found[question] = {"content": best.item.content, "relevance": best.relevance}
            stage.print_result(best.item.content, best.relevance)
        else:
            found[question] = None
            stage.print_result("nothing relevant is remembered")
    stage.add_data(found=found)
    facts, turns = 1 + len(DEMO_FACTS), len(DEMO_TURNS)
    is_complete = (tiers["semantic"].items, tiers["conversation"].items) == (facts, 2 * turns)
    stage.record_check(is_complete, f"all {facts} facts and {turns} turns are there")
    right = [question for question, answer in _ANSWERS.items() if (found[question] or {}).get("content") == answer]
    stage.record_check(len(right) == len(_ANSWERS), f"{len(right)} of {len(_ANSWERS)} questions found what was meant")
    stage.record_check(found[_UNANSWERABLE_QUESTION] is None, "what was never said is not made up")


def work_on_task(stage: DemoStage, memory: AgentMemory) -> None:
    """Run the task; its process is killed within a step the first time it comes there."""
    from recollect.sync import ResumableAgent

    def work(number: int, state: dict[str, Any], ctx: Any) -> str:
        # An external service that ignores an idempotency key it has seen, as payment services do.
        with Path(_EFFECTS_FILE).open("a+", encoding="utf-8") as effects:
            effects.seek(0)
            is_new = ctx.idempotency_key not in effects.read()
            if is_new:
                effects.write(f"{ctx.idempotency_key} step-{number}\n")
        stage.add_step(number, time.perf_counter())
        if is_new and number == _KILLED_STEP:
            os.kill(os.getpid(), _KILL_SIGNAL)  # after the effect, and before it is recorded
        return f"result {number}"

    agent = ResumableAgent(memory, lease_ttl=_LEASE_SECONDS, on_conflict="wait")
    agent.run("invoices-of-march", [functools.partial(work, number) for number in range(1, _STEP_COUNT + 1)])


def show_resume(stage: DemoStage) -> None:
    stage.open_scene(
        "Killed, and resumed",
        f"A task of {_STEP_COUNT} steps, each with an external effect, is killed within step {_KILLED_STEP}.",
    )
    code = stage.run(work_on_task, expected_code=KILL_CODE)
    killed_at = time.perf_counter()  # the same clock in all processes
    first_count = len(stage.steps)
    stage.run(work_on_task)
    numbers, times = [number for number, _ in stage.steps], [at for _, at in stage.steps]
    first, second = numbers[:first_count], numbers[first_count:]
    stage.print_steps("first process", first, "then SIGKILL")
    stage.print_steps("second process", second, f"steps {second[0]} to {second[-1]}" if second else "nothing to do")
    effects = Path(stage.directory, _EFFECTS_FILE).read_text("utf-8").splitlines()
    stage.add_data(first=first, exit_code=code, second=second, effects=len(effects))
    is_killed = code == KILL_CODE and first == list(range(1, _KILLED_STEP + 1))
    stage.record_check(is_killed, f"the first one was killed (exit code {code})")
    stage.record_check(
        second == list(range(_KILLED_STEP, _STEP_COUNT + 1)),
        f"the second one did steps {_KILLED_STEP} to {_STEP_COUNT}, and none of the {_KILLED_STEP - 1} that were done",
    )
    distinct = {line.split()[1] for line in effects}
    is_exact = len(effects) == len(distinct) == _STEP_COUNT
    stage.record_check(is_exact, f"{len(effects)} effects, {len(distinct)} of them distinct")
    if first and second:
        took = times[first_count - 1] - times[0]
        stage.add_timing("a step, committed to disk", took / max(first_count - 1, 1))
        resumed = f"from the kill to step {_KILLED_STEP} again (the lease is {_LEASE_SECONDS:g} s)"
        stage.add_timing(resumed, times[first_count] - killed_at)


def change_preference(stage: DemoStage, memory: AgentMemory) -> None:
    new = memory.remember(IMPERIAL_PREFERENCE, key=UNITS_KEY, importance=0.8)
    before = new.created_at - timedelta(microseconds=1)
    now = [hit.item.content for hit in memory.recall(_UNITS_QUESTION, tiers=["semantic"])]
    then = [hit.item.content for hit in memory.recall(_UNITS_QUESTION, tiers=["semantic"], as_of=before)]
    versions = memory.semantic.history(UNITS_KEY)
    history = [{"content": item.content, "ended": item.valid_to is not None} for item in versions]
    stage.add_data(now=now, then=then, history=history)
    stage.print_line("+", IMPERIAL_PREFERENCE)
    stage.print_line("?", _UNITS_QUESTION, "italic")
    stage.print_result(f"now: {now[0] if now else 'nothing'}")
    stage.print_result(f"as of a moment before: {then[0] if then else 'nothing'}")
    is_new = now[:1] == [IMPERIAL_PREFERENCE] and METRIC_PREFERENCE not in now
    stage.record_check(is_new, "the new value is found, the old one no longer")
    is_old = then[:1] == [METRIC_PREFERENCE] and IMPERIAL_PREFERENCE not in then
    stage.record_check(is_old, "asked about then, the old one is")
    both = [{"content": IMPERIAL_PREFERENCE, "ended": False}, {"content": METRIC_PREFERENCE, "ended": True}]
    stage.record_check(history == both, "its history has both, and says when the old one ended")


def improve_procedure(stage: DemoStage, memory: AgentMemory) -> None:
    rates = []
    for body, successes, trials in _PROCEDURE_VERSIONS:
        memory.procedural.save(PROCEDURE_KEY, body, description="how to get the invoices out")
        for trial in range(trials):
            memory.procedural.record_outcome(PROCEDURE_KEY, trial < successes)
        rate = memory.procedural.success_rate(PROCEDURE_KEY)
        rates.append(rate)
        stage.print_line("+", body)
        bounds = f"{rate.lower:.0%} to {rate.upper:.0%} with 95% confidence"
        stage.print_result(f"worked {successes} of {trials} times: {rate.rate:.0%}, {bounds}")
    context = memory.recall("How should I export the bills?", tiers=["procedural"])
    line = context.sections.get("Known procedures", ("",))[0]
    stage.add_data(rates=[asdict(rate) for rate in rates], line=line)
    is_counted = [(rate.rate, rate.trials) for rate in rates] == [(1 / 4, 4), (11 / 12, 12)]
    stage.record_check(is_counted, "all 16 outcomes were counted, each to its version")
    old, new = rates
    stage.record_check(
        old.lower < old.rate < new.lower < new.rate < new.upper,
        f"the rate moved from {old.rate:.0%} to {new.rate:.0%}, and Wilson's lower bound from {old.lower:.0%} to "
        f"{new.lower:.0%}",
    )
    is_shown = _PROCEDURE_VERSIONS[1][0] in line and "worked 11 of 12 times" in line
    stage.record_check(is_shown, "an agent that asks how is given the second way, with how often it worked")


def store_guest_data(stage: DemoStage, memory: AgentMemory) -> None:
    guest = memory.scoped(user=_GUEST, session="visit")
    for text in _GUEST_FACTS:
        guest.remember(text)
    guest.record_turn(user=_GUEST_MESSAGE, assistant="I will.")
    guest.checkpoints.checkpoint("book-a-taxi", {"for": "the guest", "why": _GUEST_MESSAGE})


def erase_guest(stage: DemoStage, memory: AgentMemory) -> None:
    guest = memory.scoped(user=_GUEST, session="visit")
    receipt = guest.erase(user=_GUEST)
    recalled = len(guest.recall("What is the code of the locker?"))
    others = len(memory.recall("Which units does Ada prefer?", tiers=["semantic"]))
    holds = memory.verify_erasure(receipt).holds
    stage.add_data(receipt=receipt.as_json(), recalled=recalled, holds=holds, others=others)


def show_erasure(stage: DemoStage) -> None:
    stage.open_scene("A user leaves", "Everything of a guest is erased, from every tier, index, log and checkpoint.")
    stage.run(store_guest_data)
    before = _count_guest_sentences(stage)
    stage.run(erase_guest)
    after = _count_guest_sentences(stage)
    stage.add_data(before=before, after=after)
    results = stage.scenes[-1]
    receipt, scan = results["receipt"], results["receipt"]["scan"]
    stage.print_line("+", f"before: a search of the files' bytes finds {before} of the guest's 3 sentences")
    stage.print_line(" ", f"erased: {sum(receipt['erased'].values())} items, entries and tasks of all tiers")
    is_gone = before == 3 and after == 0 and results["recalled"] == 0
    stage.record_check(is_gone, f"now it finds {after}, and recall finds nothing")
    is_clean = receipt["status"] == "complete" and scan["pieces"] > 0 and scan["found"] == scan["words"] == 0
    stage.record_check(is_clean, f"no piece of its texts, terms and vectors is in any of {scan['files']} files")
    is_verified = results["holds"] and results["others"] > 0
    stage.record_check(is_verified, "the receipt verifies, and the data of other users is still there")


def _count_guest_sentences(stage: DemoStage) -> int:
    data = b"\0".join(file.read_bytes() for file in stage.list_files())
    return sum(text.encode() in data for text in (*_GUEST_FACTS, _GUEST_MESSAGE))
