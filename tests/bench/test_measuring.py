"""Workers, turns, caps, tables and settings: what all cases of the bench stand on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from seqckpt.bench import fixed_costs, rnn, worker
from seqckpt.bench.case import Case, read_settings
from seqckpt.bench.cases import CASES, choose_cases
from seqckpt.bench.hardware import describe_hardware, read_hardware
from seqckpt.bench.probes import predict_peak
from seqckpt.bench.report import Report, markdown_table
from seqckpt.bench.turns import Figures, fits, measure_side_by_side
from seqckpt.bench.within_cap import find_largest
from seqckpt.errors import UsageError


class Fake:
    """A subject that does as it is named."""

    def __init__(self, *, kind: str) -> None:
        if kind == "cannot be had":
            raise RuntimeError("there is no such library")
        self.kind = kind
        self.num_asked = 0

    def time(self) -> float:
        self.num_asked += 1
        if self.kind == "dies":
            os._exit(1)
        if self.kind == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "is hungry":
            torch.zeros(2**31, dtype=torch.uint8)
        return float(self.num_asked)

    def complain(self) -> None:
        raise UsageError(f"kind={self.kind}: expected another")

    def peak(self) -> dict[str, Any]:
        self.time()
        return {"peak_bytes": 10, "with_gradients_bytes": 12, "seconds": 7.0, "process": os.getpid()}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux's own means")
def test_ways_that_fail_say_why_and_the_others_go_on() -> None:
    kinds = ["works", "dies", "is killed", "is hungry", "cannot be had"]
    ticks: list[str] = []
    found = measure_side_by_side(
        {kind: {"kind": kind} for kind in kinds}, Fake, num_steps=3, limit_bytes=2**30, tick=ticks.append
    )
    assert found["works"].seconds == [2.0, 3.0, 4.0]  # the one whose peak was taken warmed up
    assert found["works"].step_seconds == 3.0
    assert (found["works"].peak_bytes, found["works"].problem) == (10, None)
    assert found["dies"].problem == "fails: its process ended with exit code 1"
    assert found["is killed"].problem == (
        "does not fit: its process ended by SIGKILL: the system does that for want of memory"
    )
    assert found["is hungry"].problem == "does not fit: needs more than its limit of 1.00 GiB"
    assert (found["cannot be had"].problem or "").startswith("fails: RuntimeError: there is no such library")
    assert found["dies"].step_seconds is None
    assert ticks == [*kinds, *["works"] * 3]


def test_where_no_steps_are_timed_the_recorded_one_stands_for_them() -> None:
    found = measure_side_by_side({"a": {"kind": "works"}}, Fake, num_steps=0)
    assert found["a"].step_seconds == 7.0


def test_each_worker_is_a_process_of_its_own() -> None:
    with worker.Worker(Fake, kind="a") as one, worker.Worker(Fake, kind="b") as other:
        assert len({one.ask("peak")["process"], other.ask("peak")["process"], os.getpid()}) == 3
        assert [one.ask("time"), one.ask("time"), other.ask("time")] == [2.0, 3.0, 2.0]
        with pytest.raises(worker.Refused, match="AttributeError"):
            one.ask("sing")
        with pytest.raises(UsageError, match=r"^kind=a: expected another$") as caught:
            one.ask("complain")
        assert isinstance(caught.value, worker.Refused)  # for those who go on with the others
        assert one.ask("time") == 4.0


def test_what_would_not_fit_is_not_tried() -> None:
    gib = 2**30
    assert fits(0.84 * 16 * gib, 16 * gib) is None
    assert fits(27 * gib, 16 * gib) == "does not fit: would need about 27.00 GiB, 16.00 GiB are free"
    assert predict_peak([(8, 80), (16, 160), (100, 1100), (200, 2100)], 5000) == 50100


@pytest.mark.parametrize("limit", [8, 50, 999])
def test_the_largest_size_is_found_to_two_percent(limit: int) -> None:
    asked = []

    def measure(size: int) -> int | None:
        asked.append(size)
        return None if size > 2 * limit else 100 + 7 * size + (size > 20) * 30  # bent, as small sizes are

    found = find_largest(measure, measure(limit) or 0, first=(1, 2), most=10**6)
    assert found is not None
    assert limit * 0.98 - 1 <= found.size <= limit
    assert found.actual_bytes <= (measure(limit) or 0)
    assert not found.is_open
    assert found.trials[-1].predicted_bytes is not None
    assert len(asked) <= 12


def test_a_search_ends_at_the_most_that_is_asked_for() -> None:
    found = find_largest(lambda size: 100, 1000, first=(1, 2), most=40)
    assert found is not None
    assert (found.size, found.is_open) == (40, True)
    assert find_largest(lambda size: 2000, 1000, first=(1, 2), most=40) is None
    assert find_largest(lambda size: None, 1000, first=(1, 2), most=40) is None


@pytest.mark.parametrize(
    ("measure", "largest"),
    [
        (lambda size: None if size >= 80 else 100 + size, 79),  # a cliff between the first two
        (lambda size: None if size > 1000 else 100 + size, 1000),
        (lambda size: 100 if size < 777 else 10**6, 776),
        (lambda size: 100 + size**2, 999),
        (lambda size: 100 + size // 10**6, 899 * 10**6 + 999_999),  # far beyond the first
    ],
)
def test_a_search_ends_near_the_largest_however_memory_grows(
    measure: Callable[[int], int | None], largest: int
) -> None:
    found = find_largest(measure, 999 if largest > 10**6 else 10**6 - 1, first=(40, 80), most=10**10)
    assert found is not None
    assert largest * 0.98 - 1 <= found.size <= largest
    assert not found.is_open


def test_sizes_to_begin_with_must_grow() -> None:
    for first, most in (((2, 2), 10), ((0, 1), 10), ((40, 80), 60)):
        with pytest.raises(ValueError, match=r"expected two growing sizes from 1 to most"):
            find_largest(lambda size: 1, 10, first=first, most=most)


def test_a_report_is_markdown_and_json_with_the_machine_under_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware = read_hardware(["python", "-m", "seqckpt", "bench", "x", "output=a b"])
    report = Report("x", tmp_path / "new", settings={"steps": 2}, hardware=hardware, is_quick=True)
    report.add_table("two ways", ["way", "peak"], [["plain", "2 GiB"], ["a|b", "1 GiB"]])
    report.add_note("That is all.")
    picture = report.add_picture("front", "time over memory")
    assert picture == tmp_path / "new" / "x-front.svg"
    picture.write_text("<svg/>", encoding="utf-8")
    report.records.append({"way": "plain", "seconds": [1.0]})
    paths = report.write()
    markdown, data = paths[0].read_text(encoding="utf-8"), json.loads(paths[1].read_text(encoding="utf-8"))
    table = "### two ways\n\n| way | peak |\n|---|---|\n| plain | 2 GiB |\n| a\\|b | 1 GiB |"
    assert table in markdown
    assert table in capsys.readouterr().out
    assert "![time over memory](x-front.svg)" in markdown
    assert markdown.splitlines()[-1] == describe_hardware(hardware)
    assert "`python -m seqckpt bench x 'output=a b'`" in markdown
    assert f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32" in markdown
    assert data["records"] == [{"way": "plain", "seconds": [1.0]}]
    assert (data["quick"], data["hardware"]["torch"]) == (True, torch.__version__)


def test_a_report_shows_only_pictures_that_were_drawn(tmp_path: Path) -> None:
    (tmp_path / "x-peak.svg").write_text("<svg/>", encoding="utf-8")  # of an earlier run
    report = Report("x", tmp_path, settings={}, hardware=read_hardware([]))
    drawn = report.add_picture("front", "time over memory")
    report.add_picture("peak", "memory over T")
    drawn.write_text("<svg/>", encoding="utf-8")
    markdown = report.write()[0].read_text(encoding="utf-8")
    assert "![time over memory](x-front.svg)" in markdown
    assert "memory over T" not in markdown
    assert report.pictures == [drawn]


def test_a_way_that_fails_midway_has_its_problem_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {
        "ours": Figures("ours", seconds=[0.1, 0.1]),
        "by hand": Figures("by hand", seconds=[0.2], problem="fails: no more"),
    }
    monkeypatch.setattr(fixed_costs, "measure_side_by_side", lambda *given, **named: figures)
    report = Report("fixed-costs", tmp_path, settings={}, hardware={})
    fixed_costs.run_fixed_costs(fixed_costs.FIXED_COSTS.choose({"chunks": "5"}, is_quick=True), report)
    (table,) = report._tables
    assert table["rows"] == [["5", "100.0 ms", "fails: no more", "", ""]]


def test_lengths_that_nothing_was_measured_of_leave_a_table_and_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(ways: Any, *given: Any, **named: Any) -> dict[str, Figures]:
        return {name: Figures(name, problem="does not fit") for name in ways}

    monkeypatch.setattr(rnn, "measure_side_by_side", fail)
    report = Report("rnn", tmp_path, settings={}, hardware={})
    rnn.run_rnn(rnn.RNN.choose({"lengths": "16,100"}, is_quick=True), report)
    assert [row[2] for row in report._tables[0]["rows"]] == ["does not fit"] * 6
    assert report.pictures == []


def test_a_row_that_does_not_match_its_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under 2 heads"):
        markdown_table(["a", "b"], [["1"]])


def test_settings_go_to_the_cases_that_have_them() -> None:
    def run(settings: object, report: object) -> None: ...

    one = Case("one", "", run, {"steps": 5, "lengths": (1, 2)}, {"steps": 1})
    other = Case("other", "", run, {"steps": 3, "share": 0.5})
    given = read_settings([one, other], {"steps": "7", "lengths": "10,20"})
    assert given == {"one": {"steps": "7", "lengths": "10,20"}, "other": {"steps": "7"}}
    assert one.choose(given["one"], is_quick=True) == {"steps": 7, "lengths": (10, 20)}
    assert one.choose({}, is_quick=True) == {"steps": 1, "lengths": (1, 2)}
    with pytest.raises(UsageError, match=r"no setting .step. in one, other; .*did you mean steps"):
        read_settings([one, other], {"step": "7"})
    with pytest.raises(UsageError, match=r"share=much: expected a number, such as 0\.5"):
        other.choose({"share": "much"}, is_quick=False)


def test_cases_are_chosen_by_name() -> None:
    assert choose_cases([]) == list(CASES.values())
    assert [case.name for case in choose_cases(["rnn", "video", "rnn"])] == ["rnn", "video"]
    with pytest.raises(
        UsageError, match=r"'vidoe' is no case of the bench: expected some of video.*did you mean video\?"
    ):
        choose_cases(["vidoe"])


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_quick_settings_are_settings(case: Case) -> None:
    assert case.quick.keys() <= case.settings.keys()
    for name, value in case.quick.items():
        assert type(value) is type(case.settings[name]), name
