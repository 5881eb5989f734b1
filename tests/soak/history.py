"""The records of the processes of a soak, and the checks of them."""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

GRACE = 2.0
"""Seconds after its deadline within which a call has to end: a few heartbeats, on a busy machine."""

LATE = 1.0
"""Seconds after the deadline of a call within which its handler may still start, on a busy machine."""

GIVEN_UP = "was given up"
"""Part of the error message of a durable mutation that has killed its workers."""

What = Literal["begin", "end", "run", "accepted", "ran", "seen", "recorded", "memory", "act", "killed", "broken"]


class Note(Struct, omit_defaults=True, kw_only=True):
    """One line of a history.

    begin, end            a call or subscription of a caller, and how it ended
    run                   a handler has started for the call with this id
    accepted              the journal has stored the durable mutation with this id; it kills its worker if it `may` end
                          by being buried
    ran                   its handler has started; the result will be `code`
    seen, recorded        an outcome that a caller received, and the one in the journal at the end
    memory                of the process `id`: `size` kilobytes
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


class Report(Struct):
    """The summary of a history, which is good without violations."""

    calls: int = 0
    lost: int = 0  # calls whose caller was killed
    ends: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    items: int = 0
    durable: int = 0
    durable_runs: int = 0
    poison: int = 0  # durable mutations that kill their worker
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)  # megabytes in the middle, and at the end
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = {
            "calls": f"{self.calls:,}, of which {self.lost} died with their caller",
            "ended": ", ".join(f"{code} {number:,}" for code, number in self.ends.most_common()),
            "items": f"{self.items:,} of subscriptions",
            "durable": f"{self.durable:,} mutations, {self.durable_runs:,} runs, {self.poison} fatal",
            "faults": ", ".join(f"{act} {number}" for act, number in sorted(self.acts.items())),
            "memory": ", ".join(f"{who} {middle:.0f} → {end:.0f} MB" for who, (middle, end) in self.memory.items()),
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
    for who, notes in samples.items():
        third = len(notes) // 3
        if who in killed or third == 0:
            continue
        sizes = [note.size / 1024 for note in sorted(notes, key=lambda note: note.at)]
        middle, end = report.memory[who] = median(sizes[third:-third]), median(sizes[-third:])
        if end > middle * 1.2 + 20:
            report.violations.append(f"{who} grew from {middle:.0f} to {end:.0f} MB")
