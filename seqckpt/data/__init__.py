"""Data sets as they lie on disk, turned into videos, clips and labels.

    folder --formats--> entries --+--recording--> sampled frames --frame_cache or streamed_frames--> FrameSource --+
                                  |                                                                                |
                                  +--annotations, labels--> LabelTrack --checks--------------------reading---------+
                                                                                                                   |
    step <--clip_loader-- augmented, read ahead <--lanes-- Clip in its order <--clips-- Video <--------------------+

- `formats`: one small file per format, a function from a `data_folder` to what it holds. `annotations`: tables of text,
  strictly read. `labels`: texts to ids. `label_track`: rows and intervals laid out over time.
- `frame_source`: FrameSource, the one protocol: `len(source)`, `source[a:b]`; and a stretch of one.
- `timeline`: which frame is shown when, and which are sampled. `video_file`, `frame_folder`: listing the frames of a
  video or a folder of images, and decoding just those that are wanted, resized on the way (`resizing`). `recording`:
  either of them. `video_container`: opening a video. `display`, `video_display`: how its pictures are shown: turned.
- `frame_cache`: decoded frames on disk, uint8, one memory-mapped file per video. `streamed_frames`: decoded when read.
  `sampling`: all videos of a data set by one of the two, in parallel.
- `reading`: frames and labels brought together, into `videos`: Video, the one internal form.
- `doctor`: everything odd or wrong as `findings`: `checks` compares `video_facts`, `pictures` looks at frames,
  `display_checks` says which are turned, `class_balance` counts labels.
- `splits`: which videos are for what. `clips`: what one loss is computed over. `lanes`: in which order. `augmentation`:
  random changes to a clip's pictures. `prefetch`: reading ahead of the step. `clip_loader`: all of this for an epoch.
- `sample`, `sample_script`, `sample_scene`: synthetic surgeries in the layout of Cholec80.
- `recordings`: which recordings a path stands for, where there is no data set. `natural_order`: how names are sorted.
- `label_files`: what other systems wrote down as labels.

Frames are uint8 (T, C, H, W), RGB, until they are inside the encoder's chunk. Whatever is wrong with the data is a
DataError with file, line, what was read and what was expected.
"""

from seqckpt.data.augmentation import Augmentation
from seqckpt.data.class_balance import check_balance, format_balance
from seqckpt.data.clip_loader import clip_loader, explain_dead_workers
from seqckpt.data.clips import Clip, cut_clips
from seqckpt.data.doctor import Checkup, examine
from seqckpt.data.findings import Finding, report_findings
from seqckpt.data.formats import DataSet, find_format, list_formats, register_format
from seqckpt.data.frame_cache import SampledVideo
from seqckpt.data.frame_source import FrameSource
from seqckpt.data.label_files import (
    LabelFile,
    find_label_files,
    match_label_files,
    read_label_file,
    read_label_texts,
)
from seqckpt.data.labels import Labels, check_names, read_mapping
from seqckpt.data.lanes import order_clips
from seqckpt.data.prefetch import Prefetched, WaitingTime
from seqckpt.data.reading import Sources, choose_cache_dir, find_entries, list_sources, read_videos
from seqckpt.data.recording import find_shown_size, index_recording, read_recording
from seqckpt.data.recordings import find_recordings
from seqckpt.data.resizing import resize_decoded, resize_picture
from seqckpt.data.sample import SAMPLE_SPLIT, make_sample, sample_per_frame_limit
from seqckpt.data.sampling import CacheEstimate, estimate_cache, sample_videos
from seqckpt.data.splits import describe_available, expand_split, parse_split
from seqckpt.data.streamed_frames import StreamedFrames, stream_video
from seqckpt.data.timeline import to_fraction
from seqckpt.data.videos import IGNORE_INDEX, Video, count_classes

__all__ = [
    "IGNORE_INDEX",
    "SAMPLE_SPLIT",
    "Augmentation",
    "CacheEstimate",
    "Checkup",
    "Clip",
    "DataSet",
    "Finding",
    "FrameSource",
    "LabelFile",
    "Labels",
    "Prefetched",
    "SampledVideo",
    "Sources",
    "StreamedFrames",
    "Video",
    "WaitingTime",
    "check_balance",
    "check_names",
    "choose_cache_dir",
    "clip_loader",
    "count_classes",
    "cut_clips",
    "describe_available",
    "estimate_cache",
    "examine",
    "expand_split",
    "explain_dead_workers",
    "find_entries",
    "find_format",
    "find_label_files",
    "find_recordings",
    "find_shown_size",
    "format_balance",
    "index_recording",
    "list_formats",
    "list_sources",
    "make_sample",
    "match_label_files",
    "order_clips",
    "parse_split",
    "read_label_file",
    "read_label_texts",
    "read_mapping",
    "read_recording",
    "read_videos",
    "register_format",
    "report_findings",
    "resize_decoded",
    "resize_picture",
    "sample_per_frame_limit",
    "sample_videos",
    "stream_video",
    "to_fraction",
]
