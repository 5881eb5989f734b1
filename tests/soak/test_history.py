"""The checks of a history, with synthetic histories: good ones, and one per violation."""

from pathlib import Path
from typing import Any

import pytest

from tests.soak.history import GIVEN_UP, GRACE, Diary, Note, What, check_history, read_history


def note(what: What, id: str = "call", **facts: Any) -> Note:
    return Note(**{"at": 1.0, "who": "caller", "what": what, "id": id, **facts})


BEGIN = note("begin", deadline=5.0, may=("ok", "UNAVAILABLE"))
RUN = note("run", who="server")
END = note("end", code="ok")
STREAM = note("begin", deadline=5.0, may=("ok", "left"), items=[0, 1, 2])
JOB = [note("accepted", "job"), note("ran", "job", code="a"), note("recorded", "job", code="a")]
POISON = [
    note("accepted", "poison", may=(GIVEN_UP,)),
    note("ran", "poison", code="a"),
    note("recorded", "poison", code=f"it {GIVEN_UP}: its worker was lost"),
]
KILLED = note("killed", "caller")


def memory(*sizes: int) -> list[Note]:
    return [note("memory", "hub", at=at, size=size * 1024) for at, size in enumerate(sizes)]


def files(*numbers: int) -> list[Note]:
    return [note("memory", "hub", at=at, files=number) for at, number in enumerate(numbers)]


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([], id="nothing"),
        pytest.param([BEGIN, RUN, END], id="an answered call"),
        pytest.param([END, RUN, BEGIN], id="in another order"),
        pytest.param([BEGIN, note("end", code="UNAVAILABLE")], id="a call that nobody has run"),
        pytest.param([BEGIN, RUN, KILLED], id="a call of a caller that was killed"),
        pytest.param([STREAM, RUN, note("end", code="ok", items=[0, 1, 2])], id="a subscription"),
        pytest.param([STREAM, RUN, note("end", code="left", items=[0, 1])], id="a subscription that was left"),
        pytest.param(JOB, id="a durable mutation"),
        pytest.param([*JOB, note("seen", "job", code="a"), note("ran", "job", code="b")], id="one that ran twice"),
        pytest.param(POISON, id="a durable mutation that kills its worker"),
        pytest.param(memory(10, 50, 50, 50, 51, 52), id="memory that is flat after the start"),
        pytest.param([*memory(10, 10, 90), note("killed", "hub")], id="memory of a process that was killed"),
        pytest.param(files(5, 50, 50, 50, 51, 52), id="open files that stay the same"),
        pytest.param([note("left", "hub")], id="a process that has left no task"),
    ],
)
def test_a_good_history_has_no_violations(history: list[Note]) -> None:
    assert check_history(history).violations == []


@pytest.mark.parametrize(
    ("history", "violation"),
    [
        ([BEGIN, RUN], "call has 0 outcomes"),
        ([BEGIN, RUN, END, END], "call has 2 outcomes"),
        ([BEGIN, RUN, END, END, KILLED], "call has 2 outcomes"),
        ([BEGIN, RUN, RUN, END], "call was run 2 times"),
        ([BEGIN, note("run", at=7.5), END], "call was started 2.5 s after its deadline"),
        ([BEGIN, END], "call was answered, and never run"),
        ([RUN], "call was run, and was never made"),
        ([END], "call has an outcome, and was never made"),
        ([BEGIN, note("end", code="TIMEOUT")], "call ended with TIMEOUT, and not with ok or UNAVAILABLE"),
        ([BEGIN, RUN, note("end", code="ok", at=5.5 + GRACE)], f"call ended {GRACE + 0.5} s after its deadline"),
        ([STREAM, RUN, note("end", code="left", items=[0, 2])], "call has a gap, or repeats an item: [0, 2]"),
        ([STREAM, RUN, note("end", code="left", items=[0, 0])], "call has a gap, or repeats an item: [0, 0]"),
        ([STREAM, RUN, note("end", code="ok", items=[0, 1])], "call ended well after 2 of 3 items"),
        (JOB[:2], "job was accepted, and has no recorded outcome"),
        (JOB[:1] + JOB[2:], "job was accepted, and never run"),
        ([*JOB, note("ran", "job", code="b"), note("seen", "job", code="b")], "job has 2 outcomes: a, b"),
        ([*JOB[:2], note("recorded", "job", code="b")], "job has an outcome that no run has given: b"),
        (
            [*JOB[:2], note("recorded", "job", code="it was given up")],
            "job has an outcome that no run has given: it was given up",
        ),
        ([*POISON[:2], note("recorded", "poison", code="a")], "poison kills its worker, and ended with a"),
        (POISON[:2], "poison was accepted, and has no recorded outcome"),
        (memory(10, 10, 10, 10, 40, 40), "hub grew from 10 to 40 MB"),
        (files(5, 5, 5, 5, 40, 40), "hub had 5 open files, and then 40"),
        ([note("left", "hub", size=2)], "hub left 2 tasks"),
        ([note("broken", "server", code="did not end")], "server did not end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_history_is_reported(history: list[Note], violation: str) -> None:
    assert violation in check_history(history).violations


def test_the_report_counts() -> None:
    history = [
        BEGIN,
        RUN,
        END,
        note("begin", "other"),
        KILLED,
        *JOB,
        *POISON,
        note("act", code="hub kill"),
        *memory(1, 2, 3),
    ]
    text = str(check_history(history))
    for part in (
        "2, of which 1 died",
        "ok 1",
        "2 mutations, 2 runs, 1 fatal",
        "hub kill 1",
        "hub 1 → 2 → 3 MB",
        "violations  0",
    ):
        assert part in text


def test_what_is_written_is_read(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "caller")
    diary.note("begin", "call", deadline=5.0, may=("ok",), items=[1])
    diary.note("end", "call", code="ok")
    diary.close()
    begin, end = read_history(tmp_path)
    assert (begin.who, begin.what, begin.may, begin.items) == ("caller", "begin", ("ok",), [1])
    assert (end.id, end.code, end.items) == ("call", "ok", None)
    assert begin.at <= end.at
