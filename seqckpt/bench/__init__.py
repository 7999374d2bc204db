"""Side-by-side measurements, on the reader's own machine: every figure that README states comes out of here.

python -m seqckpt.bench.peak_memory       peak memory and time of a step over the number of frames
python -m seqckpt.bench.reading           what reading costs: cache, streaming, decoding, augmentation
"""

from __future__ import annotations

__all__: list[str] = []
