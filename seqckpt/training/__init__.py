"""Training a video model: steps, epochs, snapshots, and the results of a run. Takes plain arguments, no config."""

from __future__ import annotations

from seqckpt.training.budget import Budget
from seqckpt.training.class_weights import inverse_frequency
from seqckpt.training.evaluation import VideoPrediction, predict_videos, score
from seqckpt.training.interrupt import InterruptFlag, catch_interrupt
from seqckpt.training.optimiser import build_adamw, learning_rate_factor
from seqckpt.training.prediction_files import prediction_rows, read_prediction, write_prediction
from seqckpt.training.results import draw_curves, write_results
from seqckpt.training.run_directory import choose_run_path, open_run_directory
from seqckpt.training.snapshot import load_snapshot, load_weights, save_snapshot
from seqckpt.training.tables import write_table
from seqckpt.training.trainer import Trainer, TrainSettings

__all__ = [
    "Budget",
    "InterruptFlag",
    "TrainSettings",
    "Trainer",
    "VideoPrediction",
    "build_adamw",
    "catch_interrupt",
    "choose_run_path",
    "draw_curves",
    "inverse_frequency",
    "learning_rate_factor",
    "load_snapshot",
    "load_weights",
    "open_run_directory",
    "predict_videos",
    "prediction_rows",
    "read_prediction",
    "save_snapshot",
    "score",
    "write_prediction",
    "write_results",
    "write_table",
]
