"""What a run writes while it trains."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_trainer import VALIDATION, VIDEOS, make_trainer, rows

from seqckpt.data import cut_clips
from seqckpt.errors import TrainingError, UsageError
from seqckpt.progress import progress_bar
from seqckpt.training import check_tensorboard
from seqckpt.training.run_log import RunLog


def make_log(folder: Path) -> RunLog:
    return RunLog(folder, print_line=lambda line: None)


def test_lines_and_warnings_stand_in_the_text_file(tmp_path: Path) -> None:
    shown: list[str] = []
    log = RunLog(tmp_path, print_line=shown.append)
    with warnings.catch_warnings(record=True) as caught, log.open(0, []):
        warnings.simplefilter("always")
        log.say("epoch 1/2")
        logging.getLogger("seqckpt.data").warning("a frame is damaged")
        warnings.warn("odd", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["odd"]
    text = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 2)[2] for line in text] == ["epoch 1/2", "a frame is damaged", "warning: odd"]
    assert shown == ["epoch 1/2"]
    logging.getLogger("seqckpt.data").warning("after the run")
    assert "after the run" not in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_steps_after_the_snapshot_are_taken_out(tmp_path: Path) -> None:
    with make_log(tmp_path).open(0, []):
        pass
    log = make_log(tmp_path)
    with log.open(0, []):
        for step in (1, 2, 3):
            log.step({"step": step, "loss": step / 2})
    log = make_log(tmp_path)
    with log.open(2, [{"epoch": 1, "step": 2}]):
        log.step({"step": 3, "loss": 9.5})
    assert rows(tmp_path / "steps.csv") == [
        {"step": "1", "loss": "0.5"},
        {"step": "2", "loss": "1.0"},
        {"step": "3", "loss": "9.5"},
    ]
    assert rows(tmp_path / "metrics.csv") == [{"epoch": "1", "step": "2"}]


def test_a_row_cut_in_half_by_a_kill_is_taken_out(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("step,loss\n1,0.5\n2")
    with make_log(tmp_path).open(1, []):
        pass
    assert rows(tmp_path / "steps.csv") == [{"step": "1", "loss": "0.5"}]


def test_a_row_is_on_disk_at_once(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    with log.open(0, []):
        log.step({"step": 1, "loss": 0.5})
        assert rows(tmp_path / "steps.csv") == [{"step": "1", "loss": "0.5"}]


def test_tensorboard_has_scalars_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(tmp_path, tensorboard=True)
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("step/loss")]
    assert losses == pytest.approx([float(row["loss"]) for row in rows(tmp_path / "steps.csv")])
    assert [event.step for event in events.Scalars("epoch/val_accuracy")] == [5, 10]
    assert set(events.Tags()["images"]) == {"ribbons", "confusion"}


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'seqckpt\[tensorboard\]'"):
        check_tensorboard()


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 100 bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_row_that_finds_no_room_says_what_to_do(tmp_path: Path, full_disk: None) -> None:
    (tmp_path / "last.pt").touch()
    log = make_log(tmp_path)
    with log.open(0, []):
        log.step({"step": 1, "loss": 0.5})
        with pytest.raises(
            TrainingError, match=r"row of step 2 cannot be written into .*make room, and go on with resu"
        ):
            log.step({"step": 2, "loss": "1" * 200})
    with pytest.raises(TrainingError, match=r"the row of epoch 1 cannot be written"), log.open(1, []):
        log.epoch([{"epoch": 1, "step": 1, "text": "x" * 200}], {})
    assert rows(tmp_path / "steps.csv") == [{"step": "1", "loss": "0.5"}]


def test_a_text_file_that_finds_no_room_is_said_once_and_no_matter(
    tmp_path: Path, full_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_log(tmp_path)
    with log.open(0, []):
        for _ in range(2):
            log.say("x" * 200)
    shown = capsys.readouterr().err
    assert shown.count("log.txt cannot be written") == 1
    assert "Traceback" not in shown


def test_a_bar_needs_no_terminal_nor_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed, as by `2>&-` or a service: training does not end for it."""
    monkeypatch.setattr("sys.stderr", None)
    bar = progress_bar(range(3), desc="epoch 1/2")
    assert list(bar) == [0, 1, 2]
