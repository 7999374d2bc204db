"""The average of the weights: what it is, what it is for, and that the training it averages does not change."""

from __future__ import annotations

from pathlib import Path

import torch
from test_trainer import VALIDATION, VIDEOS, make_model, make_trainer

from seqckpt.data import cut_clips
from seqckpt.training import load_snapshot, predict_videos
from seqckpt.training.averaging import WeightAverage


def test_the_average_follows_its_formula() -> None:
    model = make_model()
    average = WeightAverage(model, 0.75)
    weight = model.get_submodule("head.decoder").weight
    values = []
    with torch.no_grad():
        for value in (1.0, 2.0, 4.0):
            weight.fill_(value)
            average.update(model)
            values.append(float(average.model.get_submodule("head.decoder").weight[0, 0]))
    assert values == [1.0, 1.25, 1.9375]  # the first is copied; then 0.75 of the old and 0.25 of the new
    assert average.num_updates == 3


def test_the_average_is_validated_and_kept_while_training_goes_on_as_without(tmp_path: Path) -> None:
    results = {}
    for name, decay in (("with", 0.9), ("without", None)):
        (tmp_path / name).mkdir()
        trainer = make_trainer(tmp_path / name, averaging=decay)
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
        results[name] = trainer
    trained = results["without"].model.state_dict()
    state = load_snapshot(tmp_path / "with" / "last.pt")
    assert all(torch.equal(value, trained[key]) for key, value in state["trained_model"].items())
    assert not torch.equal(state["model"]["head.decoder.weight"], trained["head.decoder.weight"])
    trainer = results["with"]
    (validated,) = predict_videos(trainer.best_model, VALIDATION, window=10)
    trainer.model.load_state_dict(state["model"])
    (again,) = predict_videos(trainer.model, VALIDATION, window=10)
    assert (validated.probabilities == again.probabilities).all()


def test_the_copy_does_not_collect_into_the_trainer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, averaging=0.9)
    assert trainer.average is not None
    assert trainer.average.model.head.collect is None
    assert trainer.model.head.collect is not None
