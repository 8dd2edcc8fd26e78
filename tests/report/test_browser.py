"""The report in Chromium, at a phone's and a laptop's width: nothing overflows, nothing fails, filter and order work."""

import shutil

import pytest

from hf_semfocus.comparison.summary import write_summary
from hf_semfocus.report.html import write_report
from tests.report.synthetic import MASKS, many_outcomes, write_run_directory, write_snapshots

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium (`playwright install chromium`): {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(run_directories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    shutil.copytree(run_directories["quickstart"], folder / "small")
    write_snapshots(folder / "small", write_summary(folder / "small"))
    write_summary(write_run_directory(folder / "large", many_outcomes()))
    return {name: write_report(folder / name) for name in ("small", "large")}


@pytest.fixture(params=[390, 1280])
def width(request):
    return request.param


def opened(browser, path, width):
    """The page, and what it complained of or asked for."""
    page, troubles = browser.new_page(viewport={"width": width, "height": 800}), []
    page.set_default_timeout(180_000)  # a busy machine
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda asked: troubles.append(asked.url) if asked.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, troubles


@pytest.mark.parametrize("name", ["small", "large"])
def test_nothing_overflows_or_fails(browser, pages, name, width):
    page, troubles = opened(browser, pages[name], width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.evaluate("document.querySelectorAll('button.details').forEach((one) => one.click())")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert troubles == []
    first = page.locator(".matrix tbody tr").first.bounding_box()
    assert first["y"] < 800, "what came out is on the first screen"


def test_seven_tasks_fifteen_masks_and_ten_seeds_are_a_small_file(pages):
    assert pages["large"].stat().st_size < 5e6


def test_the_filter_and_the_order(browser, pages, width):
    page, _ = opened(browser, pages["large"], width)
    rows = page.locator("table.main tbody:visible")
    assert rows.count() == 7 * len(MASKS)
    page.select_option("#task", "even_pairs")
    page.locator("#masks input[value='topk:5']").uncheck()
    assert rows.count() == len(MASKS) - 1
    assert set(rows.evaluate_all("rows => rows.map((row) => row.dataset.task)")) == {"even_pairs"}
    assert page.locator("figure[data-task]:visible svg").count() == 2
    assert page.locator("svg [data-mask='topk:5']:visible").count() == 0
    if width > 1000:
        page.locator("thead button[value=epochs]").click()
    else:
        page.select_option("#order", "epochs up")
    values = rows.evaluate_all(
        "rows => rows.map((row) => Number(row.querySelector('[data-column=epochs]').dataset.value))"
    )
    assert values == sorted(values)
    assert len(set(values)) > 3
    page.locator("#masks button[value=baseline]").click()
    assert rows.count() == 1
    rows.locator("button.details").click()
    assert "chance" in rows.locator(".more").inner_text()


def test_the_slider_shows_another_epoch_another_row_and_another_layer(browser, pages, width):
    page, troubles = opened(browser, pages["small"], width)
    drawn, seen = page.locator(".maps canvas"), set()
    assert drawn.count() == 2

    def look():
        seen.add(drawn.first.evaluate("canvas => canvas.toDataURL()"))

    look()
    page.locator(".slider input[type=range]").fill("2")
    look()
    assert page.locator(".slider output").inner_text() == "9"
    assert "epoch 9, training" in page.locator(".maps .said").first.inner_text()
    page.select_option("select.layer", label="2")
    look()
    page.select_option("select.row", label="2")
    look()
    assert len(seen) == 4
    assert page.locator(".tokens").inner_text() == "1 1 0 0 0 1"
    sizes = drawn.evaluate_all("all => all.map(canvas => [canvas.width, canvas.height])")
    assert sizes == [[6, 6], [7, 7]]
    page.select_option("select.layer", label="3")
    assert not drawn.first.is_visible()
    assert drawn.last.is_visible()
    assert page.locator(".maps .said").first.inner_text() == "no layer 3"
    assert troubles == []
