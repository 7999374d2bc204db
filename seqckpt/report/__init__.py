"""One HTML file about a run, to look at: scores, curves, confusion, and every test video frame by frame.

run folder --collect--> Report (records) --page--> page.html + page.css + page.js + payload, in one file
               |
               +-- frames: the pictures of the videos --thumbnails--> JPEG sheets within a budget of bytes
"""

from seqckpt.report.collect import collect_report, write_report
from seqckpt.report.frames import find_frames
from seqckpt.report.page import make_page
from seqckpt.report.records import Report, Row
from seqckpt.report.stretches import Stretch, find_wrong_stretches
from seqckpt.report.thumbnails import Thumbnails, make_thumbnails

__all__ = [
    "Report",
    "Row",
    "Stretch",
    "Thumbnails",
    "collect_report",
    "find_frames",
    "find_wrong_stretches",
    "make_page",
    "make_thumbnails",
    "write_report",
]
