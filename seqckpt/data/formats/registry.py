"""The protocol of a format, and the formats that there are."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seqckpt.data.data_folder import DataFolder
from seqckpt.data.label_track import LabelTrack
from seqckpt.data.labels import Labels
from seqckpt.errors import DataError

__all__ = ["Annotation", "DataSet", "Format", "VideoEntry", "find_format", "list_formats", "register_format"]


@dataclass(frozen=True)
class Annotation:
    """What is known of a video over time: its phases; its tools, values (R, num_tools) of 0 and 1, if there are any.

    `names_images`: labels are for images by name, whatever their numbers count from.
    """

    phases: LabelTrack
    tools: LabelTrack | None = None
    names_images: bool = False


@dataclass(frozen=True)
class VideoEntry:
    """A video of a data set, not read yet.

    Args:
        video_id: its name in the data set; files are named after it.
        path: the video file, or the folder of its frames.
        files: the files of its annotation, all of which must be there; `read` reads them.
        read: reads the annotation; raises DataError, with file and line, where it is not as the format says.
        annotation_fps: frames a second that the annotation's frame numbers count, where those of a folder of frames
            are others; None: the numbers of the frames themselves.
        frame_rate: how many frame numbers of a folder of frames make a second, where the data set says it.
    """

    video_id: str
    path: Path
    files: Sequence[Path]
    read: Callable[[], Annotation]
    annotation_fps: float | None = None
    frame_rate: float | None = None

    def __post_init__(self) -> None:
        name = self.video_id
        if name in (".", "..") or not name.isprintable() or set(name) & set("/\\") or not 0 < len(name.encode()) <= 200:
            raise DataError(
                f"the video's id {name!r} cannot name a file, as that of its predictions; expected a plain name"
            )

    @property
    def missing(self) -> list[Path]:
        """Those of its files, or the folder of its frames, that are not there."""
        return [
            *([] if self.path.exists() else [self.path]),
            *(path for path in dict.fromkeys(self.files) if not path.is_file()),
        ]

    @classmethod
    def from_file(
        cls,
        video_id: str,
        path: Path,
        file: Path,
        read: Callable[[Path, Labels], LabelTrack],
        labels: Labels,
        *,
        annotation_fps: float | None = None,
        frame_rate: float | None = None,
    ) -> VideoEntry:
        """Return a video whose annotation is the phases that `read(file, labels)` gives."""
        return cls(video_id, path, [file], lambda: Annotation(read(file, labels)), annotation_fps, frame_rate)


@dataclass(frozen=True)
class DataSet:
    """The videos that a format has found, and the lists of ids that the data set brings (its own splits, by name)."""

    entries: Sequence[VideoEntry]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def video_ids(self) -> list[str]:
        return [entry.video_id for entry in self.entries]

    @property
    def paths(self) -> dict[str, Path]:
        return {entry.video_id: entry.path for entry in self.entries}

    def __getitem__(self, video_id: str) -> VideoEntry:
        return next(entry for entry in self.entries if entry.video_id == video_id)


@dataclass(frozen=True)
class Format:
    """A format of data sets.

    Args:
        name: what it is asked for by.
        find: the format itself: lists the videos that are there, and reads no labels yet.
        phase_names: its own, in the order of their ids: a list, or a function that finds them in the folder.
        layout: what is expected in the folder, for messages.
    """

    name: str
    find: Callable[[DataFolder], DataSet]
    phase_names: Sequence[str] | Callable[[Path], Sequence[str]]
    layout: str

    def names_in(self, root: Path) -> tuple[str, ...]:
        """Return the format's own phase names for the data set in `root`. Raises DataError where there are none."""
        if not callable(self.phase_names):
            return tuple(self.phase_names)
        self._check_folder(DataFolder(root, Labels(()), layout=self.layout))
        return tuple(self.phase_names(root))

    def open(self, root: str | Path, labels: Labels, *, frames_from: str = "auto") -> DataSet:
        """Find the videos in a folder. Raises DataError, with the expected layout, where it is not of this format."""
        if frames_from not in ("auto", "videos", "frames"):
            raise ValueError(f"frames_from is {frames_from!r}; expected 'auto', 'videos' or 'frames'")
        folder = DataFolder(Path(root), labels, frames_from, self.layout)
        self._check_folder(folder)
        with contextlib.suppress(DataError):  # it brings no list, so that its numbers count in the one given
            own = self.names_in(folder.root)
            folder = dataclasses.replace(folder, labels=dataclasses.replace(labels, numbered=own))
        return self.find(folder)

    def _check_folder(self, folder: DataFolder) -> None:
        if not folder.root.is_dir():
            kind = "is not a folder" if folder.root.exists() else "does not exist"
            raise folder.fail(f"the data set {folder.root} {kind}")


_FORMATS: dict[str, Format] = {}


def register_format(new: Format) -> None:
    """Make a format known by its name, in place of an earlier one of that name."""
    _FORMATS[new.name] = new


def list_formats() -> list[str]:
    """Return the names of all formats."""
    return sorted(_FORMATS)


def find_format(name: str) -> Format:
    """Return a format by its name. Raises DataError, with the names there are, where it is unknown."""
    if name not in _FORMATS:
        near = difflib.get_close_matches(name, _FORMATS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"there is no format {name!r}: expected one of {', '.join(list_formats())}{meant}")
    return _FORMATS[name]
