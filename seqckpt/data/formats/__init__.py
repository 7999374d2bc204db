"""Formats of data sets by name: each a small file with one function that finds videos and reads their labels.

A format is a function from a DataFolder to a DataSet, made known by `register_format`; it lists what there is and reads
no labels yet. data/README.md shows how to add one.
"""

from __future__ import annotations

from seqckpt.data.formats.autolaparo import AUTOLAPARO
from seqckpt.data.formats.cataract101 import CATARACT101
from seqckpt.data.formats.cholec80 import CHOLEC80
from seqckpt.data.formats.csv import CSV
from seqckpt.data.formats.frames import FRAMES
from seqckpt.data.formats.heichole import HEICHOLE
from seqckpt.data.formats.m2cai16 import M2CAI16
from seqckpt.data.formats.mstcn import MSTCN
from seqckpt.data.formats.registry import (
    Annotation,
    DataSet,
    Format,
    VideoEntry,
    find_format,
    list_formats,
    register_format,
)

__all__ = [
    "Annotation",
    "DataSet",
    "Format",
    "VideoEntry",
    "find_format",
    "list_formats",
    "register_format",
]

for _format in (CHOLEC80, M2CAI16, AUTOLAPARO, HEICHOLE, CATARACT101, MSTCN, FRAMES, CSV):
    register_format(_format)
