"""Random attacks: modules and data that nobody thought of, run plainly and checkpointed, and compared in everything.

    python -m tests.attack.encoders --seed 1 --cases 10000
    python -m tests.attack.recurrent --seed 1 --cases 5000
    python -m tests.attack.losses --seed 1 --cases 3000
    python -m tests.attack.cores --seed 1 --cases 3000

A case follows from the seed and its number alone: `--start 4711 --cases 1` runs it by itself, and `-v` names what it is
made of. The exit status is 1 if a case was wrong, or ended in an error that the plain run does not have.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "core"))  # reference.py: the equally cut plain runs
