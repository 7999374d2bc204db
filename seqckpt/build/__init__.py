"""From a configuration to objects: the only unit that knows both."""

from seqckpt.build.data import (
    Videos,
    choose_phase_names,
    choose_videos,
    choose_window,
    count_phases,
    estimate_frame_cache,
    examine_videos,
    fill_frame_cache,
    read_split,
    read_videos,
)
from seqckpt.build.model import (
    build_model,
    build_optimiser,
    build_schedule,
    build_settings,
    check_image_size,
    choose_device,
    compile_encoder,
    find_unusable_names,
    list_class_weights,
    set_class_weights,
    weigh_classes,
    with_schedule,
)
from seqckpt.build.planning import Planning, is_open_to_plan, take_largest_batch
from seqckpt.build.resuming import check_resumable

__all__ = [
    "Planning",
    "Videos",
    "build_model",
    "build_optimiser",
    "build_schedule",
    "build_settings",
    "check_image_size",
    "check_resumable",
    "choose_device",
    "choose_phase_names",
    "choose_videos",
    "choose_window",
    "compile_encoder",
    "count_phases",
    "estimate_frame_cache",
    "examine_videos",
    "fill_frame_cache",
    "find_unusable_names",
    "is_open_to_plan",
    "list_class_weights",
    "read_split",
    "read_videos",
    "set_class_weights",
    "take_largest_batch",
    "weigh_classes",
    "with_schedule",
]
