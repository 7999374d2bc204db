// What is known of each video and each frame: the data of the page, unpacked.
const { phases, pictures, videos, all_probabilities: hasAll } = JSON.parse(document.getElementById("data").textContent);

for (const video of videos) {
  video.truth = readStretches(video.truth);
  video.prediction = readStretches(video.prediction);
  video.wrong = findWrong(video);
}

/** [phase, frames, ...] -> the phase of each stretch, and where it ends (exclusive). */
function readStretches(flat) {
  const stretches = { phases: [], ends: [] };
  for (let i = 0, end = 0; i < flat.length; i += 2) {
    stretches.phases.push(flat[i]);
    stretches.ends.push((end += flat[i + 1]));
  }
  return stretches;
}

/** The number of the first value above `limit` in a rising list. */
function firstAbove(values, limit) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

const phaseAt = (stretches, frame) => stretches.phases[firstAbove(stretches.ends, frame)];

/** Stretches of wrong frames, [start, stop] each, from both lists of stretches at once. */
function findWrong({ truth, prediction, frames }) {
  const found = [];
  for (let t = 0, p = 0, start = 0; start < frames; ) {
    const stop = Math.min(truth.ends[t], prediction.ends[p]);
    if (truth.phases[t] >= 0 && truth.phases[t] !== prediction.phases[p]) {
      const last = found[found.length - 1];
      if (last && last[1] === start) last[1] = stop;
      else found.push([start, stop]);
    }
    if (truth.ends[t] === stop) t++;
    if (prediction.ends[p] === stop) p++;
    start = stop;
  }
  return found;
}

function secondAt(video, frame) {
  return video.seconds ? video.seconds[frame] : video.start + video.step * frame;
}

function probabilitiesAt(video, frame) {
  video.bytes ??= Uint8Array.from(atob(video.probabilities), (letter) => letter.charCodeAt(0));
  const each = hasAll ? phases.length : 1;
  return video.bytes.subarray(frame * each, (frame + 1) * each);
}

const nameOf = (phase) => (phase < 0 ? "(no label)" : phases[phase].name);
const classOf = (phase) => (phase < 0 ? "unlabelled" : `phase-${phase} ${phases[phase].hatch}`);

/** 3723.5 -> "1:02:03"; with tenths or more where frames are closer than a second. */
function writeTime(second, step = 1) {
  const digits = step < 0.1 ? 2 : step < 1 ? 1 : 0;
  const scale = 10 ** digits, all = Math.floor(second * scale + 1e-6), whole = Math.floor(all / scale);
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  const text = hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  return digits ? `${text}.${String(all % scale).padStart(digits, "0")}` : text;
}

function describe(number, frame) {
  const video = videos[number];
  const truth = phaseAt(video.truth, frame), phase = phaseAt(video.prediction, frame);
  const shares = probabilitiesAt(video, frame);
  return {
    video, frame, truth, phase, shares,
    share: hasAll ? shares[phase] : shares[0],
    time: writeTime(secondAt(video, frame), video.step),
    verdict: truth < 0 ? "" : truth === phase ? "right" : "wrong",
  };
}

const inWords = ({ time, truth, phase, share, verdict }) =>
  `${time}, truth ${nameOf(truth)}, prediction ${nameOf(phase)}, ${share} %${verdict && `, ${verdict}`}`;
