"""What a trained run is used for: the model of a run, opened again.

Above `build`, since it goes from a run's own configuration to its model.
"""

from seqckpt.inference.export import OneStep, describe_step, export_onnx, export_torch, largest_difference
from seqckpt.inference.online import OnlinePredictor
from seqckpt.inference.predict import (
    PREDICTION_CHANGES,
    PREDICTION_CHUNK,
    NewVideo,
    VideoSummary,
    check_outputs,
    describe_speed,
    open_videos,
    predict_video,
)
from seqckpt.inference.run import Run, open_run

__all__ = [
    "PREDICTION_CHANGES",
    "PREDICTION_CHUNK",
    "NewVideo",
    "OneStep",
    "OnlinePredictor",
    "Run",
    "VideoSummary",
    "check_outputs",
    "describe_speed",
    "describe_step",
    "export_onnx",
    "export_torch",
    "largest_difference",
    "open_run",
    "open_videos",
    "predict_video",
]
