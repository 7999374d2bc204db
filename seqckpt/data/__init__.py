"""Data sets as they lie on disk, turned into videos, clips and labels.

    video files, folders of images --recording--> sampled frames --frame_cache or streamed_frames--> FrameSource --+
    annotation files --annotations--> label per video frame --cholec80---------------------------------------------+
                                                                                                                   |
    step <--clip_loader-- augmented, read ahead <--lanes-- Clip in its order <--clips-- Video <--------------------+

- `frame_source`: FrameSource, the one protocol: `len(source)`, `source[a:b]`; and a stretch of one.
- `timeline`: which frame is shown when, and which are sampled. `video_file`, `frame_folder`: listing the frames of a
  video or a folder of images, and decoding just those that are wanted, resized on the way. `recording`: either of them.
- `frame_cache`: decoded frames on disk, uint8, one memory-mapped file per video. `streamed_frames`: decoded when read.
  `sampling`: all videos of a data set by one of the two, in parallel.
- `annotations`: tables of text, strictly read. `cholec80`: a format, one function from a folder to Videos; another
  format is another such file.
- `videos`: Video, the one internal form. `splits`: which videos are for what. `clips`: what one loss is computed over.
  `lanes`: in which order. `augmentation`: random changes to a clip's pictures. `prefetch`: reading ahead of the step.
  `clip_loader`: all of this for an epoch.
- `sample`, `sample_script`, `sample_scene`: synthetic surgeries in the layout of Cholec80.
- `natural_order`: how names are sorted.

Frames are uint8 (T, C, H, W), RGB, until they are inside the encoder's chunk. Whatever is wrong with the data is a
DataError with file, line, what was read and what was expected.
"""

from seqckpt.data.augmentation import Augmentation
from seqckpt.data.cholec80 import PHASES, TOOLS, choose_cache_dir, list_recordings, list_video_ids, read_cholec80
from seqckpt.data.clip_loader import clip_loader
from seqckpt.data.clips import Clip, cut_clips
from seqckpt.data.frame_cache import SampledVideo
from seqckpt.data.frame_source import FrameSource
from seqckpt.data.lanes import order_clips
from seqckpt.data.prefetch import Prefetched, WaitingTime
from seqckpt.data.sample import SAMPLE_SPLIT, make_sample, sample_per_frame_limit
from seqckpt.data.sampling import CacheEstimate, estimate_cache, sample_videos
from seqckpt.data.splits import parse_split
from seqckpt.data.videos import IGNORE_INDEX, Video, count_classes

__all__ = [
    "IGNORE_INDEX",
    "PHASES",
    "SAMPLE_SPLIT",
    "TOOLS",
    "Augmentation",
    "CacheEstimate",
    "Clip",
    "FrameSource",
    "Prefetched",
    "SampledVideo",
    "Video",
    "WaitingTime",
    "choose_cache_dir",
    "clip_loader",
    "count_classes",
    "cut_clips",
    "estimate_cache",
    "list_recordings",
    "list_video_ids",
    "make_sample",
    "order_clips",
    "parse_split",
    "read_cholec80",
    "sample_per_frame_limit",
    "sample_videos",
]
