"""`python -m seqckpt`: the same as the command `seqckpt`."""

from __future__ import annotations

import sys

from seqckpt.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
