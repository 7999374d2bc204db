"""The command line: one file a command; dispatch.py finds it, and turns what goes wrong into a message."""

from __future__ import annotations

from seqckpt.cli.dispatch import main

__all__ = ["main"]
