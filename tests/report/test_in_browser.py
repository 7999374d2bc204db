"""The report in a real browser: pointing, keys, links, names, contrast, width, and that nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from made_reports import HOSTILE, GreyFrames, make_prediction, make_report

from seqckpt.report import make_page, make_thumbnails

MIDDLE_OF_PICTURE = "[...document.querySelector('#picture').getContext('2d').getImageData(32, 32, 1, 1).data][0]"
FOCUSED = "document.activeElement.getAttribute('aria-label')"


def place_in(browser: Browser, video: int, share: float) -> tuple[float, float]:
    """Return the point of a ribbon at that share of its width, scrolled into sight."""
    left, top, width = browser.run(
        f"(() => {{ const band = document.querySelectorAll('.band')[{video}]; band.scrollIntoView({{block: 'center'}});"
        "const {left, top, width} = band.getBoundingClientRect(); return [left, top, width]; })()"
    )
    return left + share * width, top + 10


def read(browser: Browser) -> dict[str, str]:
    names = ("video", "time", "truth", "phase", "probability", "verdict", "number")
    return {name: browser.text(f"#{name}") for name in names}


def wait_for_picture(browser: Browser, frame: int) -> int:
    browser.wait(f"document.querySelector('#picture').dataset.shows === '{frame}'")
    return int(browser.run(MIDDLE_OF_PICTURE))


@pytest.fixture(autouse=True)
def _nothing_goes_wrong(browser: Browser) -> Iterator[None]:
    """After each test: no error in the console, and no request but for the file itself."""
    yield
    browser.run("0")  # so that what was said until now has come
    assert browser.errors == []
    asked = [url for url in browser.requests if not url.startswith("data:")]
    assert [url.partition(":")[0] for url in asked] == ["file"]


def test_a_click_shows_the_frame_there(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point(*place_in(browser, 0, 15.5 / 50), click=True)
    assert read(browser) == {
        "video": "first",
        "time": "0:15",
        "truth": "preparation",
        "phase": "dissection",
        "probability": "55 %",
        "verdict": "✗ wrong",
        "number": "second 15 · frame 16 of 50",
    }
    assert wait_for_picture(browser, 15) == pytest.approx(75, abs=4)
    assert browser.text("#bars li:nth-child(2)") == "dissection55 %"
    assert browser.text("#spoken") == "first, 0:15, truth preparation, prediction dissection, 55 %, wrong"
    browser.point(*place_in(browser, 1, 27.5 / 40), click=True)
    assert read(browser) == {
        "video": "second",
        "time": "0:27",
        "truth": "(no label)",
        "phase": "closing",
        "probability": "67 %",
        "verdict": "",
        "number": "second 27 · frame 28 of 40",
    }
    assert wait_for_picture(browser, 27) == pytest.approx(135, abs=4)


def test_pointing_shows_a_frame_for_as_long_as_it_lasts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point(*place_in(browser, 0, 4.5 / 50), click=True)
    browser.point(*place_in(browser, 0, 40.5 / 50))
    assert browser.text("#time") == "0:40"
    browser.point(1, 1)
    assert browser.text("#time") == "0:04"


def test_keys_move(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point(*place_in(browser, 0, 20.5 / 50), click=True)
    for key, shift, video, time in (
        ("ArrowRight", False, "first", "0:21"),
        ("ArrowLeft", False, "first", "0:20"),
        ("ArrowRight", True, "first", "0:30"),
        ("ArrowLeft", True, "first", "0:20"),
        ("PageDown", False, "first", "0:30"),
        ("PageUp", False, "first", "0:20"),
        ("ArrowDown", False, "second", "0:16"),
        ("ArrowDown", False, "second", "0:16"),  # there is no third one
        ("End", False, "second", "0:39"),
        ("ArrowRight", False, "second", "0:39"),
        ("Home", False, "second", "0:00"),
        ("ArrowLeft", False, "second", "0:00"),
        ("ArrowUp", False, "first", "0:00"),
    ):
        browser.press(key, shift=shift)
        assert (browser.text("#video"), browser.text("#time")) == (video, time), key
        assert browser.run(FOCUSED) == f"Frames of {video}"


def test_the_tab_key_reaches_the_chosen_ribbon_alone(browser: Browser, page: Path) -> None:
    browser.open(page)
    reached = []
    for _ in range(60):
        browser.press("Tab")
        reached.append(browser.run(f"document.activeElement === document.body ? 'end' : {FOCUSED}"))
        if reached[-1] == "end":
            break
    assert reached.count("Frames of first") == 1
    assert "Frames of second" not in reached


def test_links_of_the_worst_stretches_jump(browser: Browser, page: Path) -> None:
    browser.open(page, height=500, prefers_reduced_motion="reduce")
    links = browser.run("[...document.querySelectorAll('.stretches a')].map((link) => link.hash)")
    assert links == ["#v1-f5", "#v0-f10", "#v0-f30"]  # the longest first
    browser.run("document.querySelector('.stretches a').click()")
    assert (browser.text("#video"), browser.text("#time")) == ("second", "0:05")
    assert browser.run(FOCUSED) == "Frames of second"
    top, bottom = browser.run(
        "(() => { const {top, bottom} = document.activeElement.getBoundingClientRect(); return [top, bottom]; })()"
    )
    assert 0 <= top < bottom <= 500
    assert browser.run("location.hash") == "#v1-f5"


def test_an_address_leads_to_its_frame(browser: Browser, page: Path) -> None:
    browser.open(page, fragment="#v1-f12")
    assert (browser.text("#video"), browser.text("#time")) == ("second", "0:12")
    browser.open(page, fragment="#v7-f12")  # of another report
    assert (browser.text("#video"), browser.text("#time")) == ("first", "0:00")


def test_buttons_step_through_wrong_stretches_of_all_videos(browser: Browser, page: Path) -> None:
    browser.open(page)
    for move, expected in (
        ("wrong-after", ("first", "0:10")),
        ("wrong-after", ("first", "0:30")),
        ("wrong-after", ("second", "0:05")),
        ("wrong-after", ("second", "0:05")),  # the last one
        ("wrong-before", ("first", "0:30")),
        ("on", ("first", "0:31")),
        ("back", ("first", "0:30")),
    ):
        browser.run(f"document.querySelector('[data-move={move}]').click()")
        assert (browser.text("#video"), browser.text("#time")) == expected


def test_everything_has_an_accessible_name(browser: Browser, page: Path) -> None:
    browser.open(page)
    tree = browser.accessible()
    for role in ("slider", "button", "link", "image", "region", "table", "heading", "columnheader", "rowheader"):
        named = [node for node in tree if node["role"] == role]
        assert named, role
        assert all(node["name"] for node in named), role
    sliders = [node for node in tree if node["role"] == "slider"]
    assert [node["name"] for node in sliders] == ["Frames of first", "Frames of second"]
    said = browser.run("document.querySelector('[role=slider]').getAttribute('aria-valuetext')")
    assert said == "0:00, truth preparation, prediction preparation, 40 %, right"
    assert "Picture of first at 0:00" in [node["name"] for node in tree]
    assert [node["live"] for node in tree if node["role"] == "status"] == ["polite"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Browser, page: Path, scheme: str) -> None:
    """4.5 to 1 for text of every kind on what lies behind it, as WCAG AA wants it."""
    browser.open(page, prefers_color_scheme=scheme)
    browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.run(CONTRASTS) == []


CONTRASTS = """(() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    return over(parse(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  };
  const light = (color) => {
    const [r, g, b] = color.map((value) => ((value /= 255) <= 0.04 ? value / 12.9 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.checkVisibility() || ['SCRIPT', 'NOSCRIPT'].includes(element.tagName)) continue;
    const style = getComputedStyle(element), back = behind(element);
    const front = over(parse(element.closest('svg') ? style.fill : style.color), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push([element.className, element.textContent.slice(0, 20), a, b]);
  }
  return found;
})()"""


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, width: int, tmp_path: Path) -> None:
    names = ["a_phase_with_one_very_long_name_that_has_no_space_in_it_" * 3, HOSTILE, "c"]
    prediction = make_prediction("a_video_with_a_long_name" * 8, [0] * 9 + [1] * 9, [0, 1, 2] * 6)
    path = tmp_path / "wide.html"
    path.write_text(make_page(make_report([prediction], names, title="x" * 200)), encoding="utf-8")
    browser.open(path, width=width, height=740)
    browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.run("document.documentElement.scrollWidth") == width


def test_ribbons_are_drawn_in_the_phases_colours(browser: Browser, page: Path) -> None:
    browser.open(page)
    place_in(browser, 0, 0)
    browser.wait("document.querySelector('.band canvas').width > 300")
    pixels = browser.run(
        "(() => { const canvas = document.querySelector('.band canvas'), pen = canvas.getContext('2d');"
        "const at = (x, y) => [...pen.getImageData(x * canvas.width, y * canvas.height, 1, 1).data].slice(0, 3);"
        "return [at(0.1, 0.2), at(0.3, 0.2), at(0.3, 0.6), at(0.3, 0.95), at(0.5, 0.95)]; })()"
    )
    blue, orange, ink, nothing = [0, 114, 178], [230, 159, 0], [27, 33, 40], [0, 0, 0]
    assert pixels == [blue, blue, orange, ink, nothing]


def test_colours_that_repeat_are_hatched(browser: Browser, tmp_path: Path) -> None:
    names = [f"phase {number}" for number in range(30)]
    prediction = make_prediction("v", [0] * 10 + [14] * 10 + [28] * 10, [29] * 30, num_phases=30)
    path = tmp_path / "many.html"
    path.write_text(make_page(make_report([prediction], names)), encoding="utf-8")
    browser.open(path)
    assert browser.text("#bars li span") == "phase 29"  # the likeliest of many phases comes first
    place_in(browser, 0, 0)
    browser.wait("document.querySelector('.band canvas').width > 300")
    counts = browser.run(
        "(() => { const canvas = document.querySelector('.band canvas'), pen = canvas.getContext('2d');"
        "const third = Math.floor(canvas.width / 3);"
        "return [0, 1, 2].map((k) => { const data = pen.getImageData(k * third + 9, 4, third - 18, 12).data;"
        "let white = 0; for (let i = 0; i < data.length; i += 4) white += data[i] > 200; return white; }); })()"
    )
    assert counts[0] == 0
    assert counts[1] > 100
    assert counts[2] > 100
    assert counts[1] != counts[2]


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    names = [HOSTILE, f"<b>{HOSTILE}", "c"]
    prediction = make_prediction(f"{HOSTILE}", [0] * 10, [1] * 10)
    path = tmp_path / "hostile.html"
    report = make_report(
        [prediction],
        names,
        title=HOSTILE,
        subtitle=HOSTILE,
        headlines=[(HOSTILE, HOSTILE, HOSTILE)],
        notes=[HOSTILE],
        settings=[(HOSTILE, HOSTILE, True)],
        facts={HOSTILE: HOSTILE},
        curves=[{"epoch": 1, f"loss {HOSTILE}": 1.0, HOSTILE: HOSTILE}],
        tables={HOSTILE: [{HOSTILE: HOSTILE}]},
    )
    path.write_text(make_page(report), encoding="utf-8")
    browser.open(path)
    assert browser.text("h1") == browser.text("#video") == browser.text("#truth") == HOSTILE
    assert browser.run("document.querySelectorAll('main img, main script, main section b b').length") == 0
    assert browser.run("document.scripts.length") == 2


@pytest.mark.parametrize("width", [360, 1280])
def test_a_long_video_name_leaves_room_for_the_words_beside_it(browser: Browser, tmp_path: Path, width: int) -> None:
    predictions = [make_prediction(name, [0] * 400, [1] * 400) for name in ("short", "a video with quite a long name")]
    path = tmp_path / "long.html"
    path.write_text(make_page(make_report(predictions, ["a", "b"])), encoding="utf-8")
    browser.open(path, width=width)
    browser.point(*place_in(browser, 1, 0.5), click=True)
    words = "[...document.querySelectorAll('.ribbon p, .ribbon h3, #time')]"
    heights = browser.run(f"{words}.map((each) => each.getBoundingClientRect().height)")
    assert max(heights) < 3 * 19  # pixels: two lines at most
    widths = browser.run("[...document.querySelectorAll('.band')].map((band) => band.clientWidth)")
    assert widths[0] == widths[1] == browser.run("document.querySelector('.ribbon').clientWidth")


def test_the_nearest_picture_stands_in(browser: Browser, tmp_path: Path) -> None:
    prediction = make_prediction("v", [0] * 51, [0] * 51)
    few = make_thumbnails({"v": GreyFrames(51)}, budget_bytes=1500)
    assert few is not None
    assert few.every > 2
    path = tmp_path / "few.html"
    path.write_text(make_page(make_report([prediction], thumbnails=few)), encoding="utf-8")
    frame = few.every + 1
    browser.open(path, fragment=f"#v0-f{frame}")
    assert browser.text("#number").endswith(f"frame {frame + 1} of 51, picture of 0:{few.every:02d}")
    assert wait_for_picture(browser, few.every) == pytest.approx(5 * few.every, abs=4)


def test_videos_of_uneven_times_without_pictures(browser: Browser, tmp_path: Path) -> None:
    seconds = [0.0, 0.5, 4.0, 9.25, 3700.5]
    prediction = make_prediction("v", [-100] * 5, [0, 1, 2, 0, 1], seconds=np.array(seconds))
    path = tmp_path / "uneven.html"
    path.write_text(make_page(make_report([prediction], thumbnails=None)), encoding="utf-8")
    browser.open(path, fragment="#v0-f4")
    assert browser.text("#number") == "second 3700.5 · frame 5 of 5"
    assert browser.run("document.querySelector('#picture').hidden") is True
