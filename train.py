"""Train from a configuration: `python train.py config=surgical_video.yaml`; the same as `seqckpt train ...`."""

import sys

from seqckpt.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
