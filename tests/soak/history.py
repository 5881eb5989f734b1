"""The records of the processes of a soak, and the checks of them."""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

import msgspec
from msgspec import Struct, field

GRACE = 2.0
"""Seconds after its deadline within which a call has to end: a few heartbeats, on a busy machine."""

LATE = 1.0
"""Seconds after the deadline of a call within which its handler may still start, on a busy machine."""

GIVEN_UP = "was given up"
"""Part of the error message of a durable mutation that has killed its workers."""

What = Literal[
    "begin", "end", "run", "accepted", "ran", "seen", "recorded", "memory", "left", "act", "killed", "broken"
]


class Note(Struct, omit_defaults=True, kw_only=True):
    """One line of a history.

    begin, end            a call or subscription of a caller, and how it ended
    run                   a handler has started for the call with this id
    accepted              the journal has stored the durable mutation with this id; it kills its worker if it `may` end
                          by being buried
    ran                   its handler has started; the result will be `code`
    seen, recorded        an outcome that a caller received, and the one in the journal at the end
    memory                of the process `id`: `size` kilobytes, and the number of its open `files`
    left                  `size` tasks of the process `id` were left when it had closed everything
    act                   a fault, and its target
    killed, broken        the process `id` could not write its last words; it has not done what it had to: `code`
    """

    at: float  # monotonic seconds, which are the same for all processes
    who: str
    what: What
    id: str
    code: str = ""
    deadline: float = 0.0
    may: tuple[str, ...] = ()  # how the call may end
    items: list[int] | None = None  # of a subscription
    size: int = 0
    files: int = 0


class Diary:
    """The file to which a process writes its notes; they persist even if the process is killed at once."""

    def __init__(self, folder: Path, who: str) -> None:
        self._file = os.open(folder / f"{who}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._who = who

    def note(self, what: What, id: str, **facts: Any) -> None:
        line = Note(at=time.monotonic(), who=self._who, what=what, id=id, **facts)
        os.write(self._file, msgspec.json.encode(line) + b"\n")  # one write: a kill leaves all of it or nothing

    def close(self) -> None:
        os.close(self._file)


def read_history(folder: Path) -> Iterator[Note]:
    """Yield the notes of all processes, in the order of each."""
    decode = msgspec.json.Decoder(Note).decode
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            yield from map(decode, lines)


class Growth(Struct):
    """Something that is measured all the time: the medians of the first tenth, and of the last two thirds."""

    start: float
    middle: float
    end: float

    @classmethod
    def of(cls, samples: list[float]) -> Self:
        third = len(samples) // 3
        start = median(samples[: max(1, len(samples) // 10)])
        return cls(start, median(samples[third:-third]), median(samples[-third:]))

    def __str__(self) -> str:
        return f"{self.start:.0f} → {self.middle:.0f} → {self.end:.0f}"


class Report(Struct):
    """The summary of a history, which is good without violations."""

    calls: int = 0
    lost: int = 0  # calls of killed callers
    ends: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    items: int = 0
    durable: int = 0
    durable_runs: int = 0
    poison: int = 0  # durable mutations that kill their worker
    memory: dict[str, Growth] = field(default_factory=dict)  # megabytes
    files: dict[str, Growth] = field(default_factory=dict)
    tasks: int = 0  # that were left by processes that ended well
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = {
            "calls": f"{self.calls:,}, of which {self.lost} died with their caller",
            "ended": ", ".join(f"{code} {number:,}" for code, number in self.ends.most_common()),
            "items": f"{self.items:,} of subscriptions",
            "durable": f"{self.durable:,} mutations, {self.durable_runs:,} runs, {self.poison} fatal",
            "faults": ", ".join(f"{act} {number}" for act, number in sorted(self.acts.items())),
            "memory": ", ".join(f"{who} {growth} MB" for who, growth in self.memory.items()),
            "open files": ", ".join(f"{who} {growth}" for who, growth in self.files.items()),
            "tasks left": str(self.tasks),
            "violations": "\n".join([f"{len(self.violations)}", *self.violations[:20]]),
        }
        return "\n".join(f"{name:<12}{text or '-'}" for name, text in rows.items())


def check_history(notes: Iterable[Note]) -> Report:
    """Check a history, in any order of its notes."""
    by_what: dict[What, dict[str, list[Note]]] = defaultdict(lambda: defaultdict(list))
    for note in notes:
        by_what[note.what][note.id].append(note)
    report = Report()
    report.acts.update(note.code for notes in by_what["act"].values() for note in notes)
    _check_calls(by_what["begin"], by_what["end"], by_what["run"], set(by_what["killed"]), report)
    _check_durable(by_what, report)
    _check_memory(by_what["memory"], set(by_what["killed"]), report)
    for note in (note for notes in by_what["left"].values() for note in notes if note.size):
        report.tasks += note.size
        report.violations.append(f"{note.id} left {note.size} tasks")
    report.violations += [f"{note.id} {note.code}" for notes in by_what["broken"].values() for note in notes]
    return report


def _check_calls(
    begins: dict[str, list[Note]],
    ends: dict[str, list[Note]],
    runs: dict[str, list[Note]],
    killed: set[str],
    report: Report,
) -> None:
    wrong = report.violations.append
    for id, (begin, *_) in begins.items():
        ended, ran = ends.get(id, ()), len(runs.get(id, ()))
        report.calls += 1
        if begin.who in killed and not ended:
            report.lost += 1
        elif len(ended) != 1:
            wrong(f"{id} has {len(ended)} outcomes")
        if ran > 1:
            wrong(f"{id} was run {ran} times")
        for run in runs.get(id, ()):
            if run.at > begin.deadline + LATE:
                wrong(f"{id} was started {run.at - begin.deadline:.1f} s after its deadline")
        for end in ended:
            report.ends[end.code] += 1
            _check_end(begin, end, ran, report)
    for id in ends.keys() - begins.keys():
        wrong(f"{id} has an outcome, and was never made")
    for id in runs.keys() - begins.keys():
        wrong(f"{id} was run, and was never made")


def _check_end(begin: Note, end: Note, ran: int, report: Report) -> None:
    wrong = report.violations.append
    if end.code not in begin.may:
        wrong(f"{begin.id} ended with {end.code}, and not with {' or '.join(begin.may)}")
    if end.at > begin.deadline + GRACE:
        wrong(f"{begin.id} ended {end.at - begin.deadline:.1f} s after its deadline")
    if end.code == "ok" and not ran:
        wrong(f"{begin.id} was answered, and never run")
    if begin.items is not None and end.items is not None:
        report.items += len(end.items)
        if end.items != begin.items[: len(end.items)]:
            wrong(f"{begin.id} has a gap, or repeats an item: {end.items}")
        elif end.code == "ok" and end.items != begin.items:
            wrong(f"{begin.id} ended well after {len(end.items)} of {len(begin.items)} items")


def _check_durable(by_what: dict[What, dict[str, list[Note]]], report: Report) -> None:
    accepted, ran, recorded = by_what["accepted"], by_what["ran"], by_what["recorded"]
    wrong = report.violations.append
    fatal = {id for id, (note, *_) in accepted.items() if note.may}
    report.durable, report.poison = len(accepted), len(fatal)
    report.durable_runs = sum(map(len, ran.values()))
    for id in accepted:
        if id not in ran:
            wrong(f"{id} was accepted, and never run")
        if id not in recorded:
            wrong(f"{id} was accepted, and has no recorded outcome")
    for id in recorded.keys() | by_what["seen"].keys():
        known = {note.code for note in (*by_what["seen"].get(id, ()), *recorded.get(id, ()))}
        if len(known) > 1:
            wrong(f"{id} has {len(known)} outcomes: {', '.join(sorted(known))}")
        if id in fatal:
            if not all(GIVEN_UP in code for code in known):
                wrong(f"{id} kills its worker, and ended with {', '.join(sorted(known))}")
        elif not known <= {note.code for note in ran.get(id, ())}:
            wrong(f"{id} has an outcome that no run has given: {', '.join(sorted(known))}")


def _check_memory(samples: dict[str, list[Note]], killed: set[str], report: Report) -> None:
    longest = max(map(len, samples.values()), default=0)
    for who, notes in samples.items():
        if who in killed or len(notes) < 3:
            continue
        notes.sort(key=lambda note: note.at)
        memory, files = Growth.of([note.size / 1024 for note in notes]), Growth.of([note.files for note in notes])
        if memory.end > memory.middle * 1.2 + 20:
            report.violations.append(f"{who} grew from {memory.middle:.0f} to {memory.end:.0f} MB")
        if files.end > files.middle * 1.2 + 10:
            report.violations.append(f"{who} had {files.middle:.0f} open files, and then {files.end:.0f}")
        if len(notes) * 3 > longest:  # the others were restarted often, and would fill the table
            report.memory[who], report.files[who] = memory, files
