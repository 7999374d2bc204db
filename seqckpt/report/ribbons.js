// Ribbons: drawn when they come into sight, stretch by stretch.

/** A function from a phase to a fill style of this canvas: a colour, or the colour under a hatching. */
function fillsFor(context) {
  const made = new Map();
  return (phase) => {
    if (!made.has(phase)) made.set(phase, makeFill(context, phase));
    return made.get(phase);
  };
}

function makeFill(context, phase) {
  if (phase < 0) return getComputedStyle(document.body).getPropertyValue("--unlabelled").trim();
  const { color, hatch } = phases[phase];
  if (hatch === "plain") return color;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = color;
  pen.fillRect(0, 0, 8, 8);
  pen.fillStyle = pen.strokeStyle = "#fff";
  pen.lineWidth = 1.5;
  pen.beginPath();
  if (hatch === "dots") for (const [x, y] of [[2, 2], [6, 6]]) pen.fillRect(x - 1, y - 1, 2, 2);
  if (hatch !== "dots") for (const shift of [-8, 0, 8]) pen.moveTo(shift, 8), pen.lineTo(shift + 8, 0);
  if (hatch === "crosses") for (const shift of [-8, 0, 8]) pen.moveTo(shift, 0), pen.lineTo(shift + 8, 8);
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function draw(ribbon) {
  const video = videos[+ribbon.dataset.video], canvas = ribbon.querySelector("canvas");
  const scale = devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d"), fillOf = fillsFor(context);
  const at = (frame) => Math.round((canvas.width * frame) / video.frames);
  const rows = { truth: [0, 0.42], prediction: [0.44, 0.86] };
  for (const [name, [top, foot]] of Object.entries(rows)) {
    const y = Math.round(top * canvas.height), tall = Math.round(foot * canvas.height) - y;
    video[name].phases.forEach((phase, number) => {
      const left = at(number ? video[name].ends[number - 1] : 0), right = at(video[name].ends[number]);
      context.fillStyle = fillOf(phase);
      context.fillRect(left, y, Math.max(1, right - left), tall);
    });
    context.strokeStyle = "rgb(128 136 144)";
    context.lineWidth = Math.max(1, Math.round(scale));
    context.strokeRect(context.lineWidth / 2, y + context.lineWidth / 2, canvas.width - context.lineWidth, tall - context.lineWidth);
  }
  context.fillStyle = getComputedStyle(document.body).getPropertyValue("--ink").trim();
  const y = Math.round(0.91 * canvas.height);
  for (const [start, stop] of video.wrong) {
    context.fillRect(at(start), y, Math.max(Math.ceil(scale), at(stop) - at(start)), canvas.height - y);
  }
  writeTimes(ribbon.querySelector(".times"), video, width);
  ribbon.drawn = true;
}

/** Write times under a ribbon: a round step, as many as there is room for. */
function writeTimes(row, video, width) {
  const first = secondAt(video, 0), last = secondAt(video, video.frames - 1) + video.step;
  const most = Math.max(2, width / 64);
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 36000];
  const step = steps.find((each) => (last - first) / each <= most) ?? 36000;
  const marks = [];
  for (let second = Math.ceil(first / step) * step; second < last && marks.length < 50; second += step) {
    const frame = video.seconds ? Math.max(0, firstAbove(video.seconds, second) - 1) : (second - video.start) / video.step;
    const share = frame / video.frames;
    if (marks.length && share * width > width - 22) break;
    const mark = document.createElement("span");
    mark.textContent = writeTime(second);
    mark.style.left = `${100 * share}%`;
    marks.push(mark);
  }
  row.replaceChildren(...marks);
}
