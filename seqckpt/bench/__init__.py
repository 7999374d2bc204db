"""Side-by-side measurements, on the reader's own machine: every figure that README states comes out of here.

    python -m seqckpt bench [case ...] [--quick] [key=value ...]

- `cases`: what there is, one line each; `case`: what a case is, its settings; `report`: tables, JSON, pictures.
- `worker`: a process for each measurement; `subject`: the step that it holds, its seconds, peak and gradients; `turns`:
  ways side by side, steps in turn; `capped`, `within_cap`: the largest size within a cap; `hardware`: on what.
- `peers`: what a user would write instead; `video_model`, `networks`: what is trained;
  `made_videos`, `long_video`: what is read.
- Cases: `video`, `video_long`, `lm`, `memonger_cnn`, `nin`, `rnn`, `suggest`, `learning`, `planning`, `reading`,
  `online`, `host_memory`, `fixed_costs`.

Times are medians of steps taken in turn by processes that live side by side: each way meets the same machine. Peaks are
the allocator's record over the step's start, gradients None before. A way that would need more memory than there is (a
shorter run foretells it) is not tried, and named; a limit on each process stands behind that.

What was tried and did not pay:
- Giving memory back to the system after every step of a tiny model: the next step fetches its pages again, and of
  differences of a few per cent nothing is left to see (`Subject(gives_back=False)`).
- A new process for every step: 0.3 s each even when forked, and caches of kernels are cold; now one for each way, alive
  as long as its length is measured.
- torch.compile with an activation memory budget at every length: each compiles anew, for minutes on two cores; it is
  measured at `compile_lengths`.
"""

from __future__ import annotations

__all__: list[str] = []
