// The viewer: picture, truth, prediction and probabilities of one frame.
const byId = (id) => document.getElementById(id);
const ribbons = [...document.querySelectorAll(".ribbon")];

const bars = (hasAll ? phases : []).map((phase, number) => {
  const item = document.createElement("li");
  const name = document.createElement("span"), share = document.createElement("span");
  const track = document.createElement("span"), fill = document.createElement("span");
  name.textContent = phase.name;
  track.className = "track";
  fill.className = `fill ${classOf(number)}`;
  track.append(fill);
  item.append(name, share, track);
  byId("bars").append(item);
  return { item, share, fill };
});
byId("all").hidden = !hasAll;
byId("all").open = !matchMedia("(max-width: 56rem)").matches;

function show(number, frame) {
  const found = describe(number, frame);
  const { video, truth, phase, share, shares, time, verdict } = found;
  const seconds = Number(secondAt(video, frame).toFixed(2));
  byId("video").textContent = video.id;
  byId("time").textContent = time;
  byId("truth").textContent = nameOf(truth);
  byId("truth-swatch").className = `swatch ${classOf(truth)}`;
  byId("phase").textContent = nameOf(phase);
  byId("phase-swatch").className = `swatch ${classOf(phase)}`;
  byId("probability").textContent = `${share} %`;
  byId("verdict").textContent = { right: "✓ right", wrong: "✗ wrong", "": "" }[verdict];
  byId("verdict").className = verdict;
  const pictured = showPicture(byId("picture"), number, frame, () => shown.video === number && shown.frame === frame);
  const other = pictured === null || pictured === frame ? "" : `, picture of ${writeTime(secondAt(video, pictured), video.step)}`;
  byId("number").textContent = `second ${seconds} · frame ${frame + 1} of ${video.frames}${other}`;
  byId("picture").setAttribute("aria-label", `Picture of ${video.id} at ${time}`);
  bars.forEach((bar, index) => {
    bar.share.textContent = `${shares[index]} %`;
    bar.fill.style.width = `${shares[index]}%`;
    bar.item.className = index === phase ? "chosen" : "";
  });
  if (bars.length > 12) {
    const order = bars.map((_, index) => index).sort((one, other) => shares[other] - shares[one]);
    byId("bars").append(...order.map((index) => bars[index].item)); // the likeliest first: not all are in sight
  }
  shown.video = number;
  shown.frame = frame;
  ribbons.forEach((ribbon, index) => {
    const cursor = ribbon.querySelector(".cursor");
    cursor.hidden = index !== number;
    cursor.style.left = `${(100 * (frame + 0.5)) / video.frames}%`;
  });
  return found;
}
const shown = { video: 0, frame: 0 };

/** Draw the picture nearest to a frame, at once or when its sheet is decoded and `wanted()` still; return its frame. */
function showPicture(canvas, number, frame, wanted) {
  const video = videos[number];
  if (!pictures || !video.sheets.length) {
    canvas.hidden = true;
    return null;
  }
  canvas.hidden = false;
  const count = Math.ceil(video.frames / pictures.every);
  const place = Math.min(Math.round(frame / pictures.every), count - 1);
  const sheet = loadSheet(video, Math.floor(place / pictures.per_sheet));
  const onSheet = place % pictures.per_sheet;
  const { width, height, columns } = pictures;
  const draw = () => {
    if (!wanted()) return;
    canvas.width = width;
    canvas.height = height;
    const left = (onSheet % columns) * width, top = Math.floor(onSheet / columns) * height;
    canvas.getContext("2d").drawImage(sheet, left, top, width, height, 0, 0, width, height);
    canvas.dataset.shows = place * pictures.every;
  };
  if (sheet.complete) setTimeout(draw);
  else sheet.addEventListener("load", draw, { once: true });
  return place * pictures.every;
}

function loadSheet(video, number) {
  video.images ??= [];
  if (!video.images[number]) {
    video.images[number] = new Image();
    video.images[number].src = `data:image/jpeg;base64,${video.sheets[number]}`;
  }
  return video.images[number];
}
