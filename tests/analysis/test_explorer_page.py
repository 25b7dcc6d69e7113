"""The explorer's page in a headless Chromium, opened from the disk."""

import shutil

import pytest

from explored import HOSTILE, write_player_run, write_principal_run
from llmrl.analysis.explorer.write import write_explorer

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (the extra dev)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (apt-get install chromium)"),
]
EPISODES = 1000
ROWS = 80
"""Most rows of a table that are in the page, whatever it is long."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("outputs")
    write_player_run(root, EPISODES, recorded=4, video=True)
    write_principal_run(root, seed=0)
    write_principal_run(root, seed=1, silent=None)
    return write_explorer(root).as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # A root user, as in a container, has no sandbox.
        browser_page = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser_page
        browser_page.close()


@pytest.fixture
def page(browser, site):
    """Open a page that loads only files of its folder and whose program raises nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    browser_page, requests, errors = context.new_page(), [], []
    browser_page.on("request", lambda request: requests.append(request.url))
    browser_page.on("pageerror", lambda error: errors.append(str(error)))
    browser_page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    browser_page.goto(f"{site}#/runs")
    browser_page.locator("x-runs .row").first.wait_for()
    yield browser_page
    folder = site.rpartition("/")[0]
    assert not [url for url in requests if not url.startswith((folder, "data:"))]
    assert not errors
    assert browser_page.evaluate("window.hurt") is None
    context.close()


def go(page, site, fragment):
    page.goto(f"{site}#/{fragment}")


def test_run_filter_selects_matches(page):
    assert page.locator("x-runs .row").count() == 3
    page.get_by_label("filter runs").fill("town llm")
    assert page.locator("x-runs .row").count() == 2
    page.get_by_label("filter runs").fill("nobody")
    assert page.locator("x-runs .row").count() == 0
    assert page.locator("x-runs [role=status]").inner_text() == "0 of 3 runs"


def test_narrow_table_scrolls_to_last_column(page):
    page.set_viewport_size({"width": 420, "height": 800})
    table, last = page.locator("x-runs x-table"), page.locator("x-runs .row").first.locator(".cell").last
    table.evaluate("table => table.scrollTo(table.scrollWidth, 0)")
    outer, inner = table.bounding_box(), last.bounding_box()
    assert outer["x"] <= inner["x"] and inner["x"] + inner["width"] <= outer["x"] + outer["width"]


def test_runs_have_distinct_labels(browser, site, tmp_path):
    page = browser.new_page()
    page.goto(f"{site}#/runs")
    names = page.locator("x-runs .row .cell:first-child").all_inner_texts()
    assert names[0].startswith("corridor / ") and names[1] == names[2] and names[1].startswith("state / ")
    assert "principal" in page.locator("x-runs .table-head").inner_text()
    write_player_run(tmp_path, 2)
    page.goto(f"{write_explorer(tmp_path).as_uri()}#/runs")
    page.locator("x-runs .row").first.wait_for()
    head = page.locator("x-runs .table-head").inner_text()
    assert "episodes" in head and "principal" not in head and "proposals" not in head
    page.close()


def test_long_pages_are_scrollable(page, site):
    page.locator("x-runs .row", has_text="corridor").click()
    rows = page.locator("x-episodes .row")
    rows.first.wait_for()
    assert 0 < rows.count() < ROWS
    scroll = page.locator(".table-scroll")
    assert scroll.evaluate("box => box.scrollHeight") >= EPISODES * 32
    scroll.evaluate("box => { box.scrollTop = box.scrollHeight }")
    page.locator("x-episodes .row", has_text="999").wait_for()
    assert rows.count() < ROWS
    scroll.focus()
    page.keyboard.press("Home")
    page.locator("x-episodes .row[aria-rowindex='1']").wait_for()


def test_episodes_are_sortable(page, site):
    go(page, site, "episodes/r0")
    status = page.locator("x-episodes [role=status]")
    page.get_by_label("has invalid replies").check()
    assert status.inner_text() == "500 of 1,000 episodes"
    page.get_by_label("minimum return").fill("40")
    assert status.inner_text() == "100 of 1,000 episodes"
    page.get_by_role("columnheader", name="return").click()
    assert page.locator("x-episodes .row").first.locator(".cell").nth(1).inner_text() == "49"


def test_scrubbing_updates_picture(page, site):
    go(page, site, "episode/r0/1")
    talk, frame = page.locator(".talk"), page.locator(".frame")
    talk.get_by_text("prompt of step 0 for 0").wait_for()
    background = frame.evaluate("box => getComputedStyle(box).backgroundPosition")
    page.get_by_label("step", exact=True).evaluate("bar => { bar.value = 3; bar.dispatchEvent(new Event('input')) }")
    talk.get_by_text("prompt of step 3 for 0").wait_for()
    assert frame.evaluate("box => getComputedStyle(box).backgroundPosition") != background
    assert "thought 3" in talk.inner_text()
    page.keyboard.press("ArrowLeft")
    talk.get_by_text("prompt of step 2 for 0").wait_for()
    assert "step=2" in page.url
    # The picture is really there.
    assert (
        page.evaluate("""async () => {
        const image = new Image();
        image.src = getComputedStyle(document.querySelector('.frame')).backgroundImage.slice(5, -2);
        await image.decode();
        return image.naturalWidth;
    }""")
        == 5 * 48
    )


def test_next_invalid_reply_is_highlighted(page, site):
    go(page, site, "episode/r0/1")
    page.get_by_role("button", name="Next invalid").click()
    page.locator(".badges", has_text="invalid: no action in it").wait_for()
    assert page.locator(".step-label").inner_text() == "step 2 of 3"
    assert page.locator("x-conversation .call").count() == 2


def test_hostile_text_is_escaped(page, site):
    go(page, site, "episode/r0/0")
    page.locator(".talk .reply").wait_for()
    assert page.locator(".talk .reply pre").text_content() == f"reply 0 {HOSTILE}"
    assert page.locator(".talk img, .talk script, .talk b").count() == 0


def test_proposal_click_opens_conversation(page, site):
    go(page, site, "timeline")
    # The two runs proposed the same: the mark of the second one lies on top.
    page.get_by_role("button", name="s1, proposal 5, objective 4").first.click()
    side = page.locator(".side")
    side.get_by_text("answer 4", exact=True).wait_for()
    assert side.locator(".prompt pre").text_content() == f"question 4 {HOSTILE}"
    assert "reason 4" in side.inner_text()
    # With the keyboard, one whose question had no valid reply.
    page.get_by_role("button", name="s0, proposal 4, objective 3").first.press("Enter")
    side.get_by_text("there is no number").first.wait_for()
    assert side.get_by_text("fallback").count() == 1
    assert side.locator(".call").count() == 2


def test_timeline_runs_are_selectable(page, site):
    go(page, site, "timeline")
    page.locator(".charts [aria-label=dot] circle").first.wait_for()
    n_marks = page.locator(".charts .mark").count()
    page.locator(".check input").nth(1).uncheck()
    page.wait_for_function(f"document.querySelectorAll('.charts .mark').length < {n_marks}")
    assert page.locator(".charts figcaption", has_text="apples").count() == 1
    page.get_by_label("filter runs of the timeline").fill("s1")
    assert page.locator(".check").count() == 1
