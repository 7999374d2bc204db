// What the page begins with, and what it draws when. The scripts share one scope; see page.py for their order.

ribbons.forEach((ribbon, number) => {
  const video = videos[number], slider = ribbon.querySelector("canvas");
  const names = { "aria-label": `Frames of ${video.id}`, "aria-valuemin": 0, "aria-valuemax": video.frames - 1, "aria-describedby": "keys" };
  for (const [name, value] of Object.entries(names)) slider.setAttribute(name, value);
  slider.setAttribute("aria-valuenow", 0);
  slider.setAttribute("aria-valuetext", inWords(describe(number, 0)));
  listen(ribbon, number);
});
const moves = {
  back: () => choose(chosen.video, chosen.frame - 1, { say: true }),
  on: () => choose(chosen.video, chosen.frame + 1, { say: true }),
  "wrong-before": () => moveToWrong(-1),
  "wrong-after": () => moveToWrong(1),
};
for (const button of document.querySelectorAll("[data-move]")) button.addEventListener("click", moves[button.dataset.move]);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#v"]');
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && follow(link.hash)) {
    history.pushState(null, "", link.hash);
    event.preventDefault();
  }
});
addEventListener("popstate", () => follow(location.hash));

const inSight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    target.inSight = isIntersecting;
    if (isIntersecting && !target.drawn) draw(target);
  }
}, { rootMargin: "300px" });
const drawAgain = () => ribbons.forEach((ribbon) => {
  ribbon.drawn = false;
  if (ribbon.inSight) draw(ribbon);
});
ribbons.forEach((ribbon) => inSight.observe(ribbon));
let width = innerWidth;
addEventListener("resize", () => width !== innerWidth && ((width = innerWidth), drawAgain()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
addEventListener("beforeprint", () => ribbons.forEach((ribbon) => ribbon.drawn || draw(ribbon)));

const small = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    small.unobserve(target);
    showPicture(target, +target.dataset.video, +target.dataset.frame, () => true);
  }
}, { rootMargin: "300px" });
for (const canvas of document.querySelectorAll(".stretches .picture")) small.observe(canvas);

choose(0, 0);
follow(location.hash);
