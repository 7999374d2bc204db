"""Frame metrics against examples worked by hand and against scikit-learn."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from seqckpt.errors import UsageError
from seqckpt.metrics import (
    LengthMismatchError,
    balanced_accuracy,
    confusion_matrix,
    frame_accuracy,
    jaccard_per_phase,
    phase_scores,
)

NAN = float("nan")


def test_ignored_frames_count_nowhere() -> None:
    """Case 103: the third of four frames is not labelled, and class 5 is predicted only there."""
    truth, prediction = [0, -1, 1, 1], [0, 5, 1, 0]
    assert frame_accuracy(truth, prediction, ignore_index=-1) == pytest.approx(2 / 3)
    scores = phase_scores(truth, prediction, 6, ignore_index=-1)
    np.testing.assert_allclose(scores.jaccard, [1 / 2, 1 / 2, NAN, NAN, NAN, NAN])
    assert confusion_matrix(truth, prediction, 6, ignore_index=-1).sum() == 3


@pytest.mark.parametrize("function", [frame_accuracy, confusion_matrix, balanced_accuracy, jaccard_per_phase])
def test_lengths_that_differ_are_an_error(function) -> None:
    """Case 104: 100 labels, 99 predictions."""
    arguments = () if function is frame_accuracy else (2,)
    with pytest.raises(LengthMismatchError, match="truth has 100 frames and prediction 99"):
        function(np.zeros(100, int), np.zeros(99, int), *arguments)
    assert issubclass(LengthMismatchError, ValueError)


def test_phases_that_are_absent() -> None:
    """Phase 0 right but for one frame, 1 missed altogether, 2 only predicted, 3 nowhere."""
    scores = phase_scores([0, 0, 0, 1], [0, 0, 2, 2], 4)
    np.testing.assert_allclose(scores.precision, [1, NAN, 0, NAN])
    np.testing.assert_allclose(scores.recall, [2 / 3, 0, NAN, NAN])
    np.testing.assert_allclose(scores.jaccard, [2 / 3, 0, 0, NAN])
    np.testing.assert_allclose(scores.f1, [4 / 5, 0, 0, NAN])
    assert balanced_accuracy([0, 0, 0, 1], [0, 0, 2, 2], 4) == pytest.approx(1 / 3)


def test_nothing_labelled_is_undefined() -> None:
    for truth, prediction in (([-100, -100], [0, 1]), ([], [])):
        assert np.isnan(frame_accuracy(truth, prediction))
        assert np.isnan(balanced_accuracy(truth, prediction, 2))
        assert np.isnan(jaccard_per_phase(truth, prediction, 2)).all()


def test_phases_outside_the_range() -> None:
    with pytest.raises(UsageError, match=r"prediction holds phase 7: expected 0 to 6 \(7 phases\)"):
        confusion_matrix([0, 1], [0, 7], 7)
    with pytest.raises(UsageError, match="truth holds phase -1"):
        confusion_matrix([-1, 1], [0, 0], 7)
    with pytest.raises(UsageError, match=r"truth is an array of float64 with shape \(2,\): expected integers"):
        confusion_matrix([0.0, 1.0], [0, 0], 7)
    with pytest.raises(UsageError, match=r"with shape \(1, 2\)"):
        frame_accuracy([[0, 1]], [[0, 1]])


def test_tensors_and_small_integers_do_as_well() -> None:
    truth, prediction = torch.tensor([0, 200, 200]), torch.tensor([0, 200, 1])
    assert frame_accuracy(truth, prediction) == pytest.approx(2 / 3)
    # 200 * 201 does not fit into uint8: counted in int64.
    counts = confusion_matrix(truth.to(torch.uint8).numpy(), prediction.to(torch.uint8).numpy(), 201)
    assert counts[200, 200] == 1
    assert counts[200, 1] == 1


@hypothesis.given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40),
    num_ignored=st.integers(0, 5),
)
def test_scikit_learn_agrees(pairs: list[tuple[int, int]], num_ignored: int) -> None:
    truth, prediction = np.array(pairs).T
    labels = list(range(5))
    padded_truth = np.append(truth, np.full(num_ignored, -100))
    padded_prediction = np.append(prediction, np.zeros(num_ignored, int))
    scores = phase_scores(padded_truth, padded_prediction, 5)
    precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(
        truth, prediction, labels=labels, zero_division=np.nan
    )
    jaccard = sklearn_metrics.jaccard_score(truth, prediction, labels=labels, average=None, zero_division=0)
    np.testing.assert_allclose(scores.precision, precision)
    np.testing.assert_allclose(scores.recall, recall)
    occurs = np.isin(labels, np.append(truth, prediction))
    np.testing.assert_allclose(scores.f1[occurs], f1[occurs])
    np.testing.assert_allclose(scores.jaccard[occurs], jaccard[occurs])
    assert np.isnan(scores.jaccard[~occurs]).all()
    assert np.isnan(scores.f1[~occurs]).all()
    np.testing.assert_array_equal(
        confusion_matrix(padded_truth, padded_prediction, 5),
        sklearn_metrics.confusion_matrix(truth, prediction, labels=labels),
    )
    assert frame_accuracy(padded_truth, padded_prediction) == pytest.approx(
        sklearn_metrics.accuracy_score(truth, prediction)
    )
    in_truth = np.isin(truth, np.unique(truth))
    assert balanced_accuracy(padded_truth, padded_prediction, 5) == pytest.approx(
        sklearn_metrics.recall_score(
            truth[in_truth], prediction[in_truth], labels=np.unique(truth), average="macro", zero_division=np.nan
        )
    )


@pytest.mark.parametrize(
    "phases", [[0, [1]], torch.tensor([0.0, 1.0], requires_grad=True), torch.zeros(2, device="meta")]
)
def test_what_is_no_array_is_named(phases) -> None:
    with pytest.raises(UsageError, match=r"^prediction is no array of integers, one per frame: "):
        frame_accuracy([0, 1], phases)
