"""The page in a real browser, where there is one: `make chromium` installs it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reason_spec.evaluation.metrics import measure
from reason_spec.lab.pages.page import write_page
from reason_spec.lab.pages.runs import Run, read_runs
from tests.evaluation.runs import write_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: make chromium")

SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert()> <b>bold</b>"
MARKS_OUTSIDE = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const frame = plot.getBoundingClientRect();
  const outside = (box) => box.left < frame.left - 1 || box.right > frame.right + 1
    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  const boxes = [...plot.querySelectorAll(":is([aria-label=dot], [aria-label=rule], [aria-label=line]) > *")]
    .map((mark) => mark.getBoundingClientRect());
  return boxes.filter(outside).map((box) => JSON.stringify(box));
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Chromium has no sandbox for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("browser") / "sums"
    write_run(folder, flags={"strategy.planner": False})
    return read_runs([folder], max_timelines=100)[0]


class Visit:
    """A page that is open, and what went wrong or went out while it was."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, **context: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        # Without motion what is pointed at stays where it is.
        context |= {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce"}
        self.page = browser.new_page(**context)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def choose(self, problem: str, strategy: str) -> None:
        self.page.fill("#search", problem)
        self.page.locator("#problems li").first.click()
        self.page.locator(f"button[data-strategy={strategy}]").click()

    def assert_sound(self) -> None:
        """The console is silent, and every mark of a chart has a place inside it."""
        assert self.complaints == []
        assert not re.search(r'"[^"<>]*(NaN|Infinity|undefined)', self.page.locator("main").inner_html())
        assert self.page.evaluate(MARKS_OUTSIDE) == []

    def screenshot(self, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path


def open_page(browser: Any, runs: list[Run], tmp_path: Path, **options: Any) -> Visit:
    write_page(runs, tmp_path / "report.html")
    return Visit(browser, tmp_path / "report.html", **options)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_drawn_without_a_complaint_or_a_request(
    browser: Any, run: Run, tmp_path: Path, scheme: str, width: int
) -> None:
    from matplotlib.image import imread

    visit = open_page(browser, [run], tmp_path, width=width, color_scheme=scheme)
    visit.assert_sound()
    assert visit.requests == [(tmp_path / "report.html").as_uri()]
    for chart in ("frontier", "latency", "steps"):
        assert visit.page.locator(f"#chart-{chart} svg [aria-label=dot] path").count() > 0, chart
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    pixels = imread(visit.screenshot(f"report-{scheme}-{width}"))[..., :3]
    assert pixels.std() > 0.05
    assert bool(pixels.mean() > 0.5) == (scheme == "light")


def test_the_timeline_of_a_chosen_problem_has_its_spans_and_the_baselines(
    browser: Any, run: Run, tmp_path: Path
) -> None:
    visit = open_page(browser, [run], tmp_path)
    visit.choose("p3", "lookahead")
    page = visit.page
    first, second = page.locator("#detail svg.lanes").all()
    assert first.locator(".span[data-lane=draft]").count() >= 3
    assert first.locator(".span[data-lane=verifier][data-state=rejected]").count() >= 1
    assert (
        second.locator(".span").count()
        == second.locator(".span[data-lane=target][data-state=kept]").count()
        == 3
    )
    assert page.locator("#detail .step").count() == 3
    # The draft miscalculates every third problem: its step is shown beside the one that stands.
    assert "= 11." in page.locator("#detail .tried .rejected-text").first.inner_text()
    widths = page.locator("#detail svg.lanes").first.evaluate("node => node.clientWidth")
    page.get_by_label("Zoom in").click()
    assert page.locator("#detail svg.lanes").first.evaluate("node => node.clientWidth") > 1.5 * widths
    visit.assert_sound()


def test_pointing_at_a_span_explains_it_and_keys_reach_every_one(
    browser: Any, run: Run, tmp_path: Path
) -> None:
    visit = open_page(browser, [run], tmp_path)
    visit.choose("p1", "lookahead")
    page = visit.page
    page.locator("#detail .span[data-lane=draft]").first.hover()
    assert "draft, step 1: kept" in page.locator("#tip").inner_text()
    assert "The box holds 3 pens." in page.locator("#tip").inner_text()
    spans = page.locator("#detail svg.lanes").first.locator(".span")
    spans.first.focus()
    for _ in range(spans.count()):
        page.keyboard.press("ArrowRight")
    assert spans.last.evaluate("node => node === document.activeElement")
    page.locator("#problems").focus()
    page.fill("#search", "")
    page.locator("#problems").press("End")
    assert "p5" in page.locator("#detail h3").inner_text()


def test_pointing_at_a_chart_names_the_nearest_strategy(browser: Any, run: Run, tmp_path: Path) -> None:
    page = open_page(browser, [run], tmp_path).page
    page.locator("#chart-frontier [aria-label=dot] path").last.hover()
    assert "lookahead" in page.locator("#chart-frontier [aria-label=tip]").text_content()


def test_problems_are_searched_and_put_in_order(browser: Any, run: Run, tmp_path: Path) -> None:
    page = open_page(browser, [run], tmp_path).page
    page.fill("#search", "box 4 p4")
    assert page.locator("#problems li").count() == 1
    page.fill("#search", "no such thing")
    assert "No problem matches" in page.locator("#problems").inner_text()
    page.fill("#search", "")
    page.select_option("#order", "wrong")
    # Every fifth reference is not what the target answers.
    assert {item.split()[0] for item in page.locator("#problems li b").all_inner_texts()[:2]} == {"p0", "p5"}


def test_hostile_texts_are_shown_and_do_not_run(browser: Any, run: Run, tmp_path: Path) -> None:
    outcomes = tuple(
        replace(
            outcome,
            question=HOSTILE,
            prediction=HOSTILE,
            steps=tuple(replace(step, text=HOSTILE) for step in outcome.steps),
        )
        for outcome in run.outcomes
    )
    timelines = {
        key: replace(
            timeline, marks=tuple(replace(mark, text=HOSTILE, reason=HOSTILE) for mark in timeline.marks)
        )
        for key, timeline in run.timelines.items()
    }
    hostile = replace(run, outcomes=outcomes, timelines=timelines, label=HOSTILE, notices=(HOSTILE,))
    visit = open_page(browser, [hostile], tmp_path)
    visit.page.locator("#detail .lanes .span").first.hover()
    assert "taken" not in visit.page.title()
    assert HOSTILE in visit.page.locator("#detail .question").inner_text()
    assert HOSTILE in visit.page.locator("#tip").inner_text()
    assert visit.page.locator("img").count() == 0
    visit.assert_sound()
    assert len(visit.requests) == 1


def test_without_timelines_the_page_shows_the_texts_and_says_what_is_missing(
    browser: Any, run: Run, tmp_path: Path
) -> None:
    visit = open_page(browser, [replace(run, timelines={})], tmp_path)
    assert "No timeline" in visit.page.locator("#detail .notice").inner_text()
    assert visit.page.locator("#detail .step").count() == 3
    visit.assert_sound()


def test_a_run_of_one_strategy_is_drawn_by_its_seconds(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "alone", 2, ("lookahead",), flags={"strategy.planner": False})
    visit = open_page(browser, list(read_runs([tmp_path / "alone"], max_timelines=10)), tmp_path)
    assert "seconds per problem" in visit.page.locator("#chart-frontier").inner_text()
    assert visit.page.locator("#detail svg.lanes").count() == 1
    visit.assert_sound()


def test_a_run_without_reference_answers_is_drawn_and_says_so(browser: Any, run: Run, tmp_path: Path) -> None:
    outcomes = tuple(replace(outcome, answer=None, correct=None) for outcome in run.outcomes)
    ungraded = replace(run, outcomes=outcomes, metrics=measure(outcomes, run.strategies))
    visit = open_page(browser, [ungraded], tmp_path)
    assert (
        "No problem of this run has a reference answer" in visit.page.locator("#chart-frontier").inner_html()
    )
    visit.assert_sound()


def test_several_runs_are_drawn_side_by_side(browser: Any, run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "other", 2, flags={"strategy.planner": False, "strategy.depth": 7})
    (other,) = read_runs([tmp_path / "other"], max_timelines=10)
    visit = open_page(browser, [run, replace(other, label="other (depth 7)", letter="B")], tmp_path)
    assert visit.page.locator("#series-legend span").count() == 4
    assert visit.page.locator("#problems li").count() == 8
    visit.assert_sound()
