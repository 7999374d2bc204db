"""Settings, names and folders that a bench cannot run with are refused in a line, before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.cases import CASES
from seqckpt.bench.report import Report
from seqckpt.cli import main
from seqckpt.errors import UsageError


def run_nothing(settings: Settings, report: Report) -> None: ...


def write(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a case for the time of a test."""

    def register(name: str, run: Any = run_nothing, **options: Any) -> None:
        monkeypatch.setitem(CASES, name, Case(name, "for a test", run, **options))

    return register


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_default_may_be_given(case: Case, is_quick: bool) -> None:
    chosen = case.choose({}, is_quick=is_quick)
    given = {name: write(value) for name, value in chosen.items() if value != ()}
    assert case.choose(given, is_quick=is_quick) == chosen
    assert {*case.least, *case.most, *case.may_be_empty} <= case.settings.keys()


def test_numbers_have_limits() -> None:
    settings = {"steps": 5, "lengths": (1, 2), "shares": (50,), "ratio": 1.5, "names": ("a",), "sweep": (1,)}
    limits = {"least": {"steps": 0, "ratio": 1}, "most": {"shares": 100}, "may_be_empty": {"sweep"}}
    case = Case("x", "", run_nothing, settings, **limits)  # type: ignore[arg-type]
    given = {"steps": "0", "lengths": "1", "shares": "1,100", "ratio": "1", "sweep": ""}
    expected = {"steps": 0, "lengths": (1,), "shares": (1, 100), "ratio": 1.0, "names": ("a",), "sweep": ()}
    assert case.choose(given, is_quick=False) == expected
    for name, text, message in [
        ("steps", "-1", "steps=-1: expected a whole number of at least 0, as in steps=5"),
        ("lengths", "3,0", "lengths=3,0: expected whole numbers of at least 1, as in lengths=1,2"),
        ("lengths", " , ", "lengths= , : expected at least one, as in lengths=1,2"),
        ("lengths", "1,2.5", "lengths=2.5: expected a whole number, such as 1"),
        ("shares", "101", "expected whole numbers from 1 to 100, as in shares=50"),
        ("ratio", "0.5", "ratio=0.5: expected a number of at least 1, as in ratio=1.5"),
        ("ratio", "nan", "ratio=nan: expected a number of at least 1"),
        ("ratio", "inf", "ratio=inf: expected a number of at least 1"),
        ("names", "", "names=: expected at least one, as in names=a"),
    ]:
        with pytest.raises(UsageError) as caught:
            case.choose({name: text}, is_quick=False)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nin batch=0", "nin: batch=0: expected a whole number of at least 1, as in batch=256"),
        ("rnn lengths=-5", "rnn: lengths=-5: expected"),
        ("rnn lengths=15", "expected whole numbers of at least 16"),
        ("suggest sizes=-4", "suggest: sizes=-4: expected"),
        ("learning seeds=", "learning: seeds=: expected at least one, as in seeds=0,1,2"),
        ("learning clip_lengths=25,300", "clip_lengths=300: expected divisors of frames_per_step=500"),
        ("learning num_videos=2", "num_videos=2: expected 0, the sample data, or at least 3"),
        ("fixed-costs chunks=", "fixed-costs: chunks=: expected at least one, as in chunks=5,25"),
        ("fixed-costs steps=0", "fixed-costs: steps=0: expected a whole number of at least 1"),
        ("host-memory lengths=100,200,300", "lengths=100,200,300: expected two different ones"),
        ("host-memory lengths=200,200", "lengths=200,200: expected two different ones"),
        ("host-memory lengths=99,200", "expected whole numbers of at least 100"),
        ("planning shares=0", "expected whole numbers from 1 to 100"),
        ("planning encoder=resnet19", "planning: encoder=resnet19: expected one of "),
        ("lm cap=much", "lm: cap=much: 'much' is no amount of memory"),
        ("lm cap=0", "lm: cap=0: expected an amount of memory, such as 2GiB"),
        ("memonger-cnn cap=-5", "memonger-cnn: cap=-5: '-5' is no amount of memory"),
        ("memonger-cnn networks=vgg", "networks=vgg: expected some of resnet, densenet, vnet"),
        ("memonger-cnn resnet_depth=30", "resnet_depth=30: expected 9n + 2, such as 29"),
        ("online draw=2", "online: draw=2: expected a whole number from 0 to 1, as in draw=0"),
        ("video-long short=500 frames=500", "short=500: expected fewer than frames=500"),
        ("video-long choice=fast", "video-long: 'fast' is no schedule"),
        ("suggest sizes=3 sizes=30", "sizes=3 and sizes=30: expected sizes= only once"),
        ("--quik", "did you mean --quick?"),
        ("quick", "did you mean --quick?"),
        ("suggest sizes", "'sizes' is no case of the bench: expected some of video"),
        ("suggest sizes", "did you mean sizes=...?"),
        ("suggest outptu", "did you mean output=...?"),
    ],
)
def test_what_cannot_be_run_is_refused_first(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments.split(" ")]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "##" not in printed.out
    assert list(tmp_path.iterdir()) == []


def test_what_one_of_several_cannot_run_is_found_before_the_first_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "suggest", "online", "encoder=vgg", f"output={tmp_path / 'new'}"]) == 2
    printed = capsys.readouterr()
    assert "online: encoder=vgg: expected some of small, resnet50" in printed.err
    assert "##" not in printed.out


def test_a_mistake_found_late_ends_only_its_own_case(
    one_case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(settings: Settings, report: Report) -> None:
        raise UsageError("there is no such video")

    one_case("first", refuse)
    one_case("second")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "first", "second"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "error: first: there is no such video\n"
    assert "second.md and second.json are in bench/second-" in printed.out
    assert [path.name.partition("-")[0] for path in (tmp_path / "bench").iterdir()] == ["second"]  # no empty folder
    assert main(["bench", "first"]) == 2
    assert capsys.readouterr().err == "error: there is no such video\n"


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(
    one_case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Settings] = []
    one_case("first", lambda settings, report: measured.append(settings))
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in [str(tmp_path / "file"), str(tmp_path / "file" / "new"), "/proc/nope/x"]:
        assert main(["bench", "first", f"output={folder}"]) == 2
        assert f"error: output={folder}" in capsys.readouterr().err
    assert measured == []


def test_folders_made_for_a_case_that_fails_are_removed(one_case: Any, tmp_path: Path) -> None:
    def fail(settings: Settings, report: Report) -> None:
        report.add_picture("front", "never drawn")
        raise RuntimeError("nothing came of it")

    one_case("first", fail)
    assert main(["bench", "first", f"output={tmp_path / 'a' / 'b'}"]) == 1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    assert main(["bench", "first", f"output={tmp_path / 'there'}"]) == 1
    assert (tmp_path / "there").is_dir()  # it was not made here


def test_the_last_line_names_pictures_where_there_are_some(
    one_case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(settings: Settings, report: Report) -> None:
        report.add_picture("front", "drawn").write_text("<svg/>", encoding="utf-8")

    one_case("first")
    one_case("second", draw)
    assert main(["bench", "first", "second", f"output={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert f"first.md and first.json are in {tmp_path}" in printed
    assert f"second.md, second.json and pictures are in {tmp_path}" in printed
