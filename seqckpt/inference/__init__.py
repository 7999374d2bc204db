"""What a trained run is used for: the model of a run, opened again.

Above `build`, since it goes from a run's own configuration to its model.
"""

from seqckpt.inference.run import Run, open_run

__all__ = ["Run", "open_run"]
