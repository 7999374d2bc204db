"""Data sets as they lie on disk, turned into videos, clips and labels.

    video files --video_file--> sampled frames --frame_cache--> FrameSource --+
    annotation files --annotations--> label per video frame --cholec80--------+--> Video --clips--> Clip

- `video_file`: which frame is shown when, and decoding just those that are wanted, resized on the way.
- `frame_cache`: decoded frames on disk, uint8, one memory-mapped file per video; a FrameSource.
- `annotations`: tables of text, strictly read. `cholec80`: a format, one function from a folder to Videos; another
  format is another such file.
- `videos`: Video and FrameSource, the one internal form. `splits`: which videos are for what. `clips`: what one loss
  is computed over, and in which order.
- `sample`, `sample_script`, `sample_scene`: synthetic surgeries in the layout of Cholec80.
- `natural_order`: how names are sorted.

Frames are uint8 (T, C, H, W), RGB, until they are inside the encoder's chunk. Whatever is wrong with the data is a
DataError with file, line, what was read and what was expected.
"""

from seqckpt.data.class_balance import check_balance, format_balance
from seqckpt.data.clips import Clip, cut_clips
from seqckpt.data.doctor import Checkup, examine
from seqckpt.data.findings import Finding, report_findings
from seqckpt.data.formats import DataSet, find_format, list_formats, register_format
from seqckpt.data.frame_source import FrameSource
from seqckpt.data.labels import Labels, check_names
from seqckpt.data.reading import choose_cache_dir, read_videos
from seqckpt.data.sample import SAMPLE_SPLIT, make_sample, sample_per_frame_limit
from seqckpt.data.splits import expand_split, parse_split
from seqckpt.data.videos import IGNORE_INDEX, Video, count_classes

__all__ = [
    "IGNORE_INDEX",
    "SAMPLE_SPLIT",
    "Checkup",
    "Clip",
    "DataSet",
    "Finding",
    "FrameSource",
    "Labels",
    "Video",
    "check_balance",
    "check_names",
    "choose_cache_dir",
    "count_classes",
    "cut_clips",
    "examine",
    "expand_split",
    "find_format",
    "format_balance",
    "list_formats",
    "make_sample",
    "parse_split",
    "read_videos",
    "register_format",
    "report_findings",
    "sample_per_frame_limit",
]
