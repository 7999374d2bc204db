"""Side-by-side measurements, on the reader's own machine: every figure that README states comes out of here.

    python -m seqckpt bench [case ...] [--quick] [key=value ...]

- `cases`: what there is, one line each; `case`: what a case is, its settings; `report`: tables, JSON, pictures.
- `worker`: a process for each measurement; `subject`: the step that it holds, its seconds, peak and gradients; `turns`:
  ways side by side, steps in turn; `gradient_errors`: how exact they are; `capped`, `within_cap`: the largest size
  within a cap; `probes`: what cannot fit; `hardware`: on what.
- `peers`: what a user would write instead; `video_model`, `networks`: what is trained; `made_videos`:
  what is read; `reading_subject`: what is measured of that.
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
- oneDNN's own conv + ReLU and conv + add + ReLU, as torch.compile uses them in inference: within 2 % of conv, then
  add_ and relu_ in place; not worth a private operator.
- Prepacked weights for the first pass: no gain on pictures of 7x7 and larger, 1.3x slower on 4x4.
- One layout for all fused layers: channels_last for everything makes a ResNet's layer4 1.3-1.5x slower both ways.
- Matrix products for the weight gradients of layers on 14x14 (1.3-1.7x slower than oneDNN's kernels) and 7x7 (equal
  to 1.3x slower); kept for 4x4 only. Nine products, one per kernel position: as fast, or slower.
- LSTM segments of 25: at T = 500 five times nn.LSTM's time, since each call of the kernel prepares the weights anew;
  segments of 100 take 2 MiB more (of a ResNet-18 step 1 % of the time).
- Letting go of a piece's output gradient during its backward, as of its result: the engine holds it, and only private
  use counts would tell whether nobody else does. It is one boundary of memory in a row of checkpointed layers.
- Replaying the last chunk, too (as GradCache does), computed, not built: less by what LSTM and loss take beside its
  graph, 0.9 MiB of 10.8 with a tiny encoder and nothing to speak of with a ResNet, for one more chunk's forward.
- Scaling all weights by the frozen batch norm once per step: 45 MiB more for ResNet-18, in place of 3; large ones'
  results are scaled instead.
"""

from __future__ import annotations

__all__: list[str] = []
