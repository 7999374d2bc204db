// Moving: by pointer, keys, buttons and links.
const chosen = { video: 0, frame: 0 }; // what was clicked or moved to; pointing shows another frame for a while only

/** Choose a frame: show it, make its ribbon the one that the tab key reaches, and say it if no slider does. */
function choose(number, frame, { focus = false, scroll = false, say = false } = {}) {
  chosen.video = Math.max(0, Math.min(number, videos.length - 1));
  chosen.frame = Math.max(0, Math.min(frame, videos[chosen.video].frames - 1));
  const found = show(chosen.video, chosen.frame);
  ribbons.forEach((ribbon, index) => {
    const isChosen = index === chosen.video;
    ribbon.classList.toggle("chosen", isChosen);
    ribbon.querySelector("canvas").tabIndex = isChosen ? 0 : -1;
  });
  const slider = ribbons[chosen.video].querySelector("canvas");
  slider.setAttribute("aria-valuenow", chosen.frame);
  slider.setAttribute("aria-valuetext", inWords(found));
  if (focus) slider.focus({ preventScroll: true });
  if (scroll) reveal(ribbons[chosen.video]);
  byId("spoken").textContent = say ? `${found.video.id}, ${inWords(found)}` : "";
}

/** Bring a ribbon into sight, below what sticks to the top. */
function reveal(ribbon) {
  const viewer = document.querySelector(".viewer");
  const narrow = matchMedia("(max-width: 56rem)").matches;
  const above = narrow ? viewer.offsetHeight + 56 : 56;
  const { top, bottom } = ribbon.getBoundingClientRect();
  if (top >= above && bottom <= innerHeight) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const target = scrollY + top - above - (innerHeight - above - ribbon.offsetHeight) / 3;
  scrollTo({ top: target, behavior: calm ? "auto" : "smooth" });
}

function moveToWrong(direction) {
  const { video, frame } = chosen;
  const places = videos[video].wrong.map(([start]) => start);
  const later = firstAbove(places, frame);
  if (direction > 0 && later < places.length) return choose(video, places[later], { say: true });
  if (direction < 0) {
    const before = places.filter((place) => place < frame).pop();
    if (before !== undefined) return choose(video, before, { say: true });
  }
  for (let other = video + direction; other >= 0 && other < videos.length; other += direction) {
    const found = videos[other].wrong.at(direction > 0 ? 0 : -1);
    if (found) return choose(other, found[0], { say: true, scroll: true });
  }
  byId("spoken").textContent = `No wrong stretch ${direction > 0 ? "after" : "before"} this one`;
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const { video, frame } = chosen, { frames } = videos[video];
  const step = event.shiftKey ? 10 : 1, page = Math.max(10, Math.round(frames / 20));
  const share = frame / frames; // the same part of another video
  const moves = {
    ArrowLeft: [video, frame - step],
    ArrowRight: [video, frame + step],
    PageUp: [video, frame - page],
    PageDown: [video, frame + page],
    Home: [video, 0],
    End: [video, frames - 1],
    ArrowUp: video > 0 && [video - 1, Math.floor(share * videos[video - 1].frames)],
    ArrowDown: video + 1 < videos.length && [video + 1, Math.floor(share * videos[video + 1].frames)],
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  if (moves[event.key]) choose(...moves[event.key], { focus: true, scroll: true });
}

/** Follow "#v3-f120" to frame 120 of video 3; false for any other address. */
function follow(address) {
  const match = /^#v(\d+)-f(\d+)$/.exec(address);
  if (!match || +match[1] >= videos.length) return false;
  choose(+match[1], +match[2], { focus: true, scroll: true, say: true });
  return true;
}

function listen(ribbon, number) {
  const slider = ribbon.querySelector("canvas"), band = ribbon.querySelector(".band");
  const frameAt = (event) => {
    const { left, width } = band.getBoundingClientRect();
    return Math.max(0, Math.min(Math.floor(((event.clientX - left) / width) * videos[number].frames), videos[number].frames - 1));
  };
  let pressed = false;
  band.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = true;
    band.setPointerCapture(event.pointerId);
    choose(number, frameAt(event), { focus: true });
    event.preventDefault();
  });
  band.addEventListener("pointermove", (event) => (pressed ? choose : show)(number, frameAt(event)));
  const release = () => {
    if (pressed) choose(chosen.video, chosen.frame, { say: true });
    pressed = false;
  };
  band.addEventListener("pointerup", release);
  band.addEventListener("pointercancel", release);
  band.addEventListener("pointerleave", () => pressed || show(chosen.video, chosen.frame));
  slider.addEventListener("keydown", onKey);
  slider.addEventListener("focus", () => number === chosen.video || choose(number, 0));
}
