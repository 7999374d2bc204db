"""Training a video model: steps, epochs, snapshots, and the results of a run. Takes plain arguments, no config."""

from __future__ import annotations

from seqckpt.training.budget import Budget
from seqckpt.training.class_weights import inverse_frequency
from seqckpt.training.environment import note_environment
from seqckpt.training.evaluation import VideoPrediction, predict_videos, predict_windows, score
from seqckpt.training.interrupt import Stopped
from seqckpt.training.optimiser import build_optimiser, learning_rate_factor
from seqckpt.training.precision import Precision
from seqckpt.training.prediction_files import prediction_rows, read_prediction, write_prediction
from seqckpt.training.randomness import deterministic, seed_generators
from seqckpt.training.ranks import Ranks, join_ranks
from seqckpt.training.results import draw_curves, write_results
from seqckpt.training.run_directory import (
    RUNS,
    choose_run_path,
    find_resumable,
    find_run,
    has_snapshot,
    is_unbegun,
    open_run_directory,
    remove_unbegun,
    taken_error,
    writing_into,
)
from seqckpt.training.run_log import check_tensorboard, note_line
from seqckpt.training.settings import TrainSettings
from seqckpt.training.snapshot import RUN_KEYS, forget_lost_best, load_last, load_snapshot, load_weights, save_snapshot
from seqckpt.training.tables import write_table
from seqckpt.training.trainer import Trainer

__all__ = [
    "RUNS",
    "RUN_KEYS",
    "Budget",
    "Precision",
    "Ranks",
    "Stopped",
    "TrainSettings",
    "Trainer",
    "VideoPrediction",
    "build_optimiser",
    "check_tensorboard",
    "choose_run_path",
    "deterministic",
    "draw_curves",
    "find_resumable",
    "find_run",
    "forget_lost_best",
    "has_snapshot",
    "inverse_frequency",
    "is_unbegun",
    "join_ranks",
    "learning_rate_factor",
    "load_last",
    "load_snapshot",
    "load_weights",
    "note_environment",
    "note_line",
    "open_run_directory",
    "predict_videos",
    "predict_windows",
    "prediction_rows",
    "read_prediction",
    "remove_unbegun",
    "save_snapshot",
    "score",
    "seed_generators",
    "taken_error",
    "write_prediction",
    "write_results",
    "write_table",
    "writing_into",
]
