"""`recollect demo`: six scenes, offline, each played in a separate process, with every claim checked.

`play_…` runs in the separate process and sends its results; `show_…` prints and checks them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
_INDENT = 3
# -P: modules in the current directory are not imported.
_CHILD_PROGRAM = ("-P", "-c", "from recollect.cli.demo import run_scene_process; run_scene_process()")

UNITS_KEY = "ada.units"
METRIC_PREFERENCE = "Ada prefers metric units in every report."
IMPERIAL_PREFERENCE = "Ada prefers imperial units since she moved to Boston."
DEMO_FACTS = (
    "The staging database listens on port 6432; production uses 5432.",
    "Never deploy on Fridays: the on-call engineer is alone.",
    "Ada's daughter Mina started school in Lisbon in September.",
)
DEMO_TURNS = (
    ("The invoice export timed out again, at 12,000 rows.", "I split it by month, and every part went through."),
    ("Please keep each file below 10 MB: the mail server refuses more.", "Understood."),
)
_EXPECTED_ANSWERS = {
    "Should distances be in miles or kilometers?": METRIC_PREFERENCE,
    "Is it a good idea to ship before the weekend?": DEMO_FACTS[1],
    "Where does her child go to school?": DEMO_FACTS[2],
    "How did we get a large number of invoices out?": DEMO_TURNS[0][0],
    "What is the capital of Mongolia?": None,
}
_UNITS_QUESTION = "Which units should the report use?"

STEP_COUNT = 25
KILLED_STEP = 18
_LEASE_SECONDS = 2.0  # the lease of a killed worker has to expire

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
    with _open_directory(keep) as directory:
        store = str(directory / "agent.db") if caller.store is None else _resolve_new_store(caller.store)
        target = DemoTarget(str(directory), store, tenant=caller.tenant, user=caller.user, agent=caller.agent)
        stage = DemoStage(build_console(quiet=caller.as_json))
        show_scenes(stage, target, monday=caller.session or "monday")
        if caller.as_json:
            print_json(stage.build_report())
        elif keep is not None or caller.store is not None:
            stage.console.print(Text(f"\nThe files are kept: {store}", "dim"))
    if failed := stage.failed_checks:
        if not caller.as_json:
            print_error(f"{len(failed)} of the checks failed")
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def _open_directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        # Virus scanners may still have a file open.
        with tempfile.TemporaryDirectory(prefix="recollect-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadInput(f"{keep} exists and is not an empty directory; use a new one")
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{keep} cannot be created: {error.strerror}") from error
    yield keep.resolve()


def _resolve_new_store(store: str) -> str:
    path = Path(store.removeprefix("sqlite:///")).expanduser()
    if "://" in store.removeprefix("sqlite:///") or path.exists():
        raise BadInput(f"--store must be a new file for the demo; got {store}")
    return str(path.resolve())


# Output


def build_console(*, quiet: bool = False) -> Console:
    console = OutputConsole(highlight=False, emoji=False, quiet=quiet)
    console.width = min(console.width, _MAX_WIDTH)
    return console


class DemoStage:
    """Prints the scenes, and collects their data, checks and timings."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.scenes: list[dict[str, Any]] = []
        self.timings: dict[str, float] = {}

    @property
    def failed_checks(self) -> list[str]:
        return [check["text"] for scene in self.scenes for check in scene["checks"] if not check["ok"]]

    def pick_mark(self, mark: str, ascii_mark: str) -> str:
        return mark if "utf" in self.console.encoding.lower() else ascii_mark

    def open_scene(self, title: str, subtitle: str) -> None:
        self.scenes.append({"title": title, "checks": []})
        self.console.print()
        self._print(0, Text(str(len(self.scenes)), "cyan"), Text(title, "bold"))
        self._print(0, Text(), Text(subtitle, "dim"))

    def add_data(self, **data: Any) -> None:
        """Add data of the current scene to the JSON report."""
        self.scenes[-1].update(data)

    def print_line(self, mark: str, text: str, style: str = "") -> None:
        self._print(_INDENT, Text(mark, "cyan"), Text(text, style))

    def print_result(self, text: str, relevance: float | None = None) -> None:
        arrow = self.pick_mark("→", ">")
        self._print(_INDENT + 2, Text(arrow if relevance is None else f"{arrow} {relevance:.2f}", "dim"), Text(text))

    def record_check(self, ok: bool, text: str) -> None:
        self.scenes[-1]["checks"].append({"text": text, "ok": ok})
        mark = Text(self.pick_mark("✓", "ok"), "green") if ok else Text(self.pick_mark("✗", "NO"), "bold red")
        self._print(_INDENT, mark, Text(text, "" if ok else "red"))

    def print_table(self, title: str, rows: Mapping[str, str]) -> None:
        self.console.print()
        self.console.print(Text(title, "bold"))
        width = max(map(len, rows))
        for name, value in rows.items():
            self._print(0, Text(), Text.assemble(f"{name:<{width}}   ", (value, "cyan")))

    def _print(self, indent: int, mark: Text, text: Text) -> None:
        """Print a mark and a text; its lines are indented and folded to the width of the console."""
        mark.pad_right(_INDENT - len(mark)) if len(mark) < _INDENT else mark.append(" ")
        for line in text.wrap(self.console, max(1, self.console.width - indent - len(mark)), overflow="fold"):
            row = Text.assemble(" " * indent, mark, line)
            row.rstrip()
            self.console.print(row, soft_wrap=True)
            mark = Text(" " * len(mark))

    def build_report(self) -> dict[str, Any]:
        """Return everything as JSON."""
        seconds = {name: round(value, 4) for name, value in self.timings.items()}
        return {"ok": not self.failed_checks, "scenes": self.scenes, "seconds": seconds}


# Processes


class DemoTarget(NamedTuple):
    """The store and the scope of the demo."""

    directory: str
    store: str
    tenant: str = "default"
    user: str = "default"
    agent: str = "default"

    def open(self, *, user: str | None = None, session: str | None = None) -> AgentMemory:
        from recollect.sync import AgentMemory

        return AgentMemory.open(
            self.store, tenant=self.tenant, user=user or self.user, agent=self.agent, session=session
        )


@contextlib.contextmanager
def start_scene(scene: str, target: DemoTarget, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a scene in a process, which is killed at the end of the block."""
    # Without the user's settings, so that the demo is offline and always the same; THREADS limits the processors used.
    kept = f"{ENV_PREFIX}THREADS"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX) or name == kept}
    request = json.dumps({"scene": scene, "target": target._asdict(), "arguments": arguments})
    with subprocess.Popen(
        [sys.executable, *_CHILD_PROGRAM, request],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        cwd=target.directory,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_results(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the results that a scene sends until its end; raise `RecollectError` if it fails."""
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        result = json.loads(line)
        if "error" in result:
            raise RecollectError(result["error"])
        yield result
    output = process.stderr.read().strip().splitlines()
    if process.wait():
        raise RecollectError(f"a process of the demo failed: {output[-1] if output else process.returncode}")


def run_scene(scene: str, target: DemoTarget, **arguments: Any) -> dict[str, Any]:
    """Play a scene to its end and return its results."""
    with start_scene(scene, target, **arguments) as process:
        return {name: value for result in read_results(process) for name, value in result.items()}


def run_scene_process() -> None:
    """Play the scene in the argument and send its results."""
    request = json.loads(sys.argv[1])
    try:
        send_result(**_SCENES[request["scene"]](DemoTarget(**request["target"]), **request["arguments"]))
    except RecollectError as error:
        send_result(error=str(error))


def send_result(**result: Any) -> None:
    """Send results from the process of a scene, one line of JSON each."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


# Scenes


def play_learning(target: DemoTarget, session: str) -> dict[str, Any]:
    seconds = []
    with target.open(session=session) as memory:
        memory.remember(METRIC_PREFERENCE, key=UNITS_KEY, importance=0.8)  # loads the model
        for fact in DEMO_FACTS:
            began = time.perf_counter()
            memory.remember(fact)
            seconds.append(time.perf_counter() - began)
        for message, answer in DEMO_TURNS:
            memory.record_turn(message, answer)
    return {"seconds": sorted(seconds)[len(seconds) // 2]}


def show_learning(stage: DemoStage, target: DemoTarget, session: str) -> None:
    stage.open_scene("A session learns", "A process stores facts, a preference and a conversation, word for word.")
    messages = [message for message, _ in DEMO_TURNS]
    for text in (METRIC_PREFERENCE, *DEMO_FACTS, *(f"“{message}”" for message in messages)):
        stage.print_line("+", text)
    stage.timings["remember a fact"] = run_scene("learning", target, session=session)["seconds"]
    name = Path(target.store).name
    files = [path.name for path in Path(target.store).parent.glob(f"{name}*")]
    stage.add_data(facts=[METRIC_PREFERENCE, *DEMO_FACTS], turns=messages, files=files)
    stage.record_check(files == [name], "that process has ended, and left one file")


def play_recall(target: DemoTarget, questions: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seconds = []
    with target.open(session="tuesday") as memory:
        tiers = memory.stats().tiers
        memory.recall("the first question loads the model")
        for question in questions:
            began = time.perf_counter()
            context = memory.recall(question, n=1)
            seconds.append(time.perf_counter() - began)
            best = max(context.hits, key=lambda hit: hit.relevance, default=None)
            found[question] = None if best is None else {"content": best.item.content, "relevance": best.relevance}
    counts = [tiers["semantic"].items, tiers["conversation"].items]
    return {"counts": counts, "found": found, "seconds": sorted(seconds)[len(seconds) // 2]}


def show_recall(stage: DemoStage, target: DemoTarget) -> None:
    stage.open_scene("Another process recalls, by meaning", "It has never seen the texts, and asks in other words.")
    results = run_scene("meaning", target, questions=list(_EXPECTED_ANSWERS))
    stage.timings["recall by meaning"] = results["seconds"]
    found = results["found"]
    for question, hit in found.items():
        stage.print_line("?", question, "italic")
        stage.print_result(*((hit["content"], hit["relevance"]) if hit else ("nothing relevant is remembered",)))
    stage.add_data(found=found)
    is_complete = results["counts"] == [1 + len(DEMO_FACTS), 2 * len(DEMO_TURNS)]
    stage.record_check(is_complete, f"all {1 + len(DEMO_FACTS)} facts and {len(DEMO_TURNS)} turns are there")
    known = {question: answer for question, answer in _EXPECTED_ANSWERS.items() if answer is not None}
    right = [question for question in known if found[question] and found[question]["content"] == known[question]]
    stage.record_check(len(right) == len(known), f"{len(right)} of {len(known)} questions found what was meant")
    is_silent = all(found[question] is None for question in _EXPECTED_ANSWERS.keys() - known.keys())
    stage.record_check(is_silent, "what was never said is not made up")


def play_resume(target: DemoTarget, deadly: bool) -> dict[str, Any]:
    from recollect.sync import ResumableAgent

    effects = Path(target.directory) / "effects.txt"
    executed: list[int] = []

    def make_step(number: int) -> Any:
        def work(state: dict[str, Any], ctx: Any) -> str:
            executed.append(number)
            # An external service that ignores an idempotency key it has seen, as payment services do.
            if ctx.idempotency_key not in (effects.read_text("utf-8") if effects.exists() else ""):
                with effects.open("a", encoding="utf-8") as file:
                    file.write(f"{ctx.idempotency_key} step-{number}\n")
            send_result(step=number, at=time.perf_counter())
            if deadly and number == KILLED_STEP:
                threading.Event().wait(60)  # killed here: after the effect, and before it is recorded
            return f"result {number}"

        return work

    with target.open() as memory:
        agent = ResumableAgent(memory, lease_ttl=_LEASE_SECONDS, on_conflict="wait")
        state = agent.run("invoices-of-march", [make_step(number) for number in range(1, STEP_COUNT + 1)])
    return {"executed": executed, "completed": len(state["completed"])}


def show_resume(stage: DemoStage, target: DemoTarget) -> None:
    stage.open_scene(
        "Killed, and resumed",
        f"A task of {STEP_COUNT} steps, each with an external effect, is killed within step {KILLED_STEP}.",
    )
    steps, code = _run_until_killed(target)
    killed_at = time.perf_counter()
    first = [line["step"] for line in steps]
    print_step_bar(stage, "first process", first, "then SIGKILL")
    results: dict[str, Any] = {}
    with start_scene("killing", target, deadly=False) as process:
        for line in read_results(process):
            results = {"began": time.perf_counter(), **results, **line}
    second = results["executed"]
    print_step_bar(stage, "second process", second, f"steps {second[0]} to {second[-1]}" if second else "nothing to do")
    effects = (Path(target.directory) / "effects.txt").read_text("utf-8").splitlines()
    stage.add_data(first=first, exit_code=code, second=second, effects=len(effects))
    is_killed = code == -getattr(signal, "SIGKILL", -1) and first == list(range(1, KILLED_STEP + 1))
    stage.record_check(is_killed, f"the first one was killed (exit code {code})")
    is_resumed = second == list(range(KILLED_STEP, STEP_COUNT + 1)) and results["completed"] == STEP_COUNT
    stage.record_check(
        is_resumed,
        f"the second one did steps {KILLED_STEP} to {STEP_COUNT}, and none of the {KILLED_STEP - 1} that were done",
    )
    distinct = {line.split()[1] for line in effects}
    is_exact = len(effects) == len(distinct) == STEP_COUNT
    stage.record_check(is_exact, f"{len(effects)} effects, {len(distinct)} of them distinct")
    if steps:
        took = (steps[-1]["at"] - steps[0]["at"]) / max(len(steps) - 1, 1)
        stage.timings["a step, committed to disk"] = took
        resumed = f"from the kill to step {KILLED_STEP} again (the lease is {_LEASE_SECONDS:g} s)"
        stage.timings[resumed] = results["began"] - killed_at


def _run_until_killed(target: DemoTarget) -> tuple[list[dict[str, Any]], int | None]:
    """Return the steps that began, and the exit code of the killed process; None if it ended by itself."""
    steps: list[dict[str, Any]] = []
    with start_scene("killing", target, deadly=True) as process:
        for line in read_results(process):
            if "step" in line:
                steps.append(line)
            if line.get("step") == KILLED_STEP:
                process.kill()  # SIGKILL where it exists
                return steps, process.wait()
    return steps, None


def print_step_bar(stage: DemoStage, process: str, steps: list[int], comment: str) -> None:
    square = stage.pick_mark("■", "#")
    squares = "".join(square if number in steps else " " for number in range(1, STEP_COUNT + 1))
    stage.print_line(" ", f"{process:<15}{squares}  {comment}")


def play_update(target: DemoTarget) -> dict[str, Any]:
    with target.open() as memory:
        new = memory.remember(IMPERIAL_PREFERENCE, key=UNITS_KEY, importance=0.8)
        before = new.created_at - timedelta(microseconds=1)
        now = memory.recall(_UNITS_QUESTION, tiers=["semantic"])
        then = memory.recall(_UNITS_QUESTION, tiers=["semantic"], as_of=before)
        history = memory.semantic.history(UNITS_KEY)
    return {
        "now": [hit.item.content for hit in now],
        "then": [hit.item.content for hit in then],
        "history": [{"content": item.content, "ended": item.valid_to is not None} for item in history],
    }


def show_update(stage: DemoStage, target: DemoTarget) -> None:
    stage.open_scene("A preference changes", "The same key, another value: the old one need not be found and deleted.")
    results = run_scene("superseding", target)
    now, then = results["now"], results["then"]
    stage.print_line("+", IMPERIAL_PREFERENCE)
    stage.print_line("?", _UNITS_QUESTION, "italic")
    stage.print_result(f"now: {now[0] if now else 'nothing'}")
    stage.print_result(f"as of a moment before: {then[0] if then else 'nothing'}")
    stage.add_data(**results)
    is_new = now[:1] == [IMPERIAL_PREFERENCE] and METRIC_PREFERENCE not in now
    stage.record_check(is_new, "the new value is found, the old one no longer")
    is_old = then[:1] == [METRIC_PREFERENCE] and IMPERIAL_PREFERENCE not in then
    stage.record_check(is_old, "asked about then, the old one is")
    both = [{"content": IMPERIAL_PREFERENCE, "ended": False}, {"content": METRIC_PREFERENCE, "ended": True}]
    stage.record_check(results["history"] == both, "its history has both, and says when the old one ended")


def play_success_rate(target: DemoTarget) -> dict[str, Any]:
    rates = []
    with target.open() as memory:
        for body, successes, trials in _PROCEDURE_VERSIONS:
            memory.procedural.save(PROCEDURE_KEY, body, description="how to get the invoices out")
            for trial in range(trials):
                memory.procedural.record_outcome(PROCEDURE_KEY, trial < successes)
            rates.append(asdict(memory.procedural.success_rate(PROCEDURE_KEY)))
        context = memory.recall("How should I export the bills?", tiers=["procedural"])
    return {"rates": rates, "line": context.sections.get("Known procedures", ("",))[0]}


def show_success_rate(stage: DemoStage, target: DemoTarget) -> None:
    stage.open_scene(
        "A procedure gets better", "Every attempt counts. Few prove little, and the bounds say how little."
    )
    results = run_scene("improving", target)
    rates = results["rates"]
    for (body, successes, trials), rate in zip(_PROCEDURE_VERSIONS, rates, strict=True):
        stage.print_line("+", body)
        bounds = f"{rate['lower']:.0%} to {rate['upper']:.0%} with 95% confidence"
        stage.print_result(f"worked {successes} of {trials} times: {rate['rate']:.0%}, {bounds}")
    stage.add_data(**results)
    expected = [(trials, successes / trials) for _, successes, trials in _PROCEDURE_VERSIONS]
    total = sum(trials for trials, _ in expected)
    is_counted = [(rate["trials"], rate["rate"]) for rate in rates] == expected
    stage.record_check(is_counted, f"all {total} outcomes were counted, each to its version")
    first, second = rates
    stage.record_check(
        first["lower"] < first["rate"] < second["lower"] < second["rate"] < second["upper"],
        f"the rate moved from {first['rate']:.0%} to {second['rate']:.0%}, and Wilson's lower bound from "
        f"{first['lower']:.0%} to {second['lower']:.0%}",
    )
    is_shown = _PROCEDURE_VERSIONS[1][0] in results["line"] and "worked 11 of 12 times" in results["line"]
    stage.record_check(is_shown, "an agent that asks how is given the second way, with how often it worked")


def play_erasure(target: DemoTarget, leaves: bool) -> dict[str, Any]:
    with target.open(user=_GUEST, session="visit") as memory:
        if not leaves:
            for text in _GUEST_FACTS:
                memory.remember(text)
            memory.record_turn(user=_GUEST_MESSAGE, assistant="I will.")
            memory.checkpoints.checkpoint("book-a-taxi", {"for": "the guest", "why": _GUEST_MESSAGE})
            return {}
        receipt = memory.erase(user=_GUEST)
        return {
            "receipt": receipt.as_json(),
            "recalled": len(memory.recall("What is the code of the locker?")),
            "holds": memory.verify_erasure(receipt).holds,
            "others": len(memory.scoped(user=target.user).recall("Which units does Ada prefer?", tiers=["semantic"])),
        }


def show_erasure(stage: DemoStage, target: DemoTarget) -> None:
    stage.open_scene("A user leaves", "Everything of a guest is erased, from every tier, index, log and checkpoint.")
    run_scene("erasing", target, leaves=False)
    before = _count_found_sentences(target)
    results = run_scene("erasing", target, leaves=True)
    after = _count_found_sentences(target)
    receipt, scan = results["receipt"], results["receipt"]["scan"]
    stage.print_line("+", f"before: a search of the files' bytes finds {before} of the guest's 3 sentences")
    stage.print_line(" ", f"erased: {sum(receipt['erased'].values())} items, entries and tasks of all tiers")
    stage.add_data(before=before, after=after, **results)
    is_gone = before == 3 and after == 0 and results["recalled"] == 0
    stage.record_check(is_gone, f"now it finds {after}, and recall finds nothing")
    is_clean = receipt["status"] == "complete" and scan["pieces"] > 0 and scan["found"] == scan["words"] == 0
    stage.record_check(is_clean, f"no piece of its texts, terms and vectors is in any of {scan['files']} files")
    is_verified = results["holds"] and results["others"] > 0
    stage.record_check(is_verified, "the receipt verifies, and the data of other users is still there")


def _count_found_sentences(target: DemoTarget) -> int:
    """Return how many of the guest's sentences are in any file, by a plain search of its bytes."""
    store = Path(target.store)
    data = b"\0".join(file.read_bytes() for file in store.parent.glob(store.name + "*"))
    return sum(text.encode() in data for text in (*_GUEST_FACTS, _GUEST_MESSAGE))


_SCENES: dict[str, Callable[..., dict[str, Any]]] = {
    "learning": play_learning,
    "meaning": play_recall,
    "killing": play_resume,
    "superseding": play_update,
    "improving": play_success_rate,
    "erasing": play_erasure,
}


def show_scenes(stage: DemoStage, target: DemoTarget, *, monday: str) -> None:
    """Show the six scenes and their timings."""
    began = time.perf_counter()
    title = f"[bold]Recollect {__version__}[/bold]: memory for agents, in one file, offline, without a key."
    stage.console.print(title)
    show_learning(stage, target, session=monday)
    for show in (show_recall, show_resume, show_update, show_success_rate, show_erasure):
        show(stage, target)
    stage.timings["the whole demo, in eight processes"] = time.perf_counter() - began
    shown = {name: f"{s:.1f} s" if s >= 1 else f"{1000 * s:.1f} ms" for name, s in stage.timings.items()}
    stage.print_table("As measured just now", shown)
    stage.print_table("Where to go next", _NEXT_STEPS)
