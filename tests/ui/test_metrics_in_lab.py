"""The metrics of a run in JupyterLab: as charts with marks, as a table, and as CSV."""

import base64
import re
from xml.etree import ElementTree

import pytest
from browsing import cell_output, command, open_notebook, panel, run_all, save, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

STAGE = """
import asyncio
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel

staged = StagedRun(2)
run = staged.run
panel = RunPanel(run)
display(panel)
staged.start()
print("run", run.id)
losses = [3.0, 2.0, 0.5, 1.0] + [1.5] * {more}
staged.points("loss", list(range(1, len(losses) + 1)), losses)
staged.points("train/acc", [1, 2, 3, 4], [0.1, 0.2, 0.4, 0.3])
staged.points("val/acc", [2, 4], [0.15, 0.35])
staged.points("few", [1, 2], [1.0, 2.0])
staged.progress(1, 2, train_step=1)
staged.progress(2, 2, train_step=2)
staged.progress(2, 2, epoch=2, train_step=4)
for step in range(5, 2000):
    await asyncio.sleep(0.1)
    run.poll()
    panel.refresh()
"""


def staged_panel(lab, page, name, more=0):
    open_notebook(page, lab.write(name, STAGE.format(more=more)))
    run_all(page)
    expect(state(page)).to_have_text("running")
    return panel(page)


def run_tab(page):
    printed = page.get_by_text(re.compile("^run [0-9]")).inner_text()
    command(page, "nbmgpu:open-run", id=printed.split()[1])
    return page.locator(".nbmgpu-RunTab").get_by_role("region", name="Run on several ranks")


def chart(view, name):
    return view.get_by_role("figure").filter(has_text=re.compile(f"^{name}"))


def check_table(page, view):
    toggle = view.get_by_role("button", name="Table", exact=True)
    expect(toggle).to_have_attribute("aria-pressed", "false")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    table = view.get_by_role("table", name="Values of each metric in this run")
    heads = ["Metric", "Last", "Lowest", "Highest", "Mean of epoch 2", "Points"]
    expect(table.get_by_role("columnheader")).to_have_text(heads)
    expect(table.locator("tbody th")).to_have_text(["loss", "train/acc", "val/acc", "few"])
    loss = table.get_by_role("row").filter(has_text="loss").get_by_role("cell")
    expect(loss).to_have_text(
        ["1", "0.5, the best one at step 3", re.compile("^3.* at step 1$"), "0.75", "4"]
    )
    expect(loss.nth(1)).to_have_attribute("data-best", "")
    expect(view.get_by_role("figure")).to_have_count(0)
    view.get_by_role("region", name="Metrics", exact=True).focus()  # scrolls by arrow keys
    toggle.click()
    expect(chart(view, "loss")).to_be_visible()
    expect(table).to_have_count(0)


def check_csv(page, view):
    with page.expect_download() as download:
        view.get_by_role("button", name="Download all metrics as CSV").click()
    assert re.fullmatch(r"2[0-9]{7}-.*-metrics\.csv", download.value.suggested_filename)
    return download.value.path().read_text().splitlines()


def test_metrics_are_shown_as_a_table_and_saved_as_csv(lab, page, shoot):
    view = staged_panel(lab, page, "metrics.ipynb")
    rows = [
        "step,epoch,loss,train/acc,val/acc,few",
        "1,0.5,3.0,0.1,,1.0",
        "2,1,2.0,0.2,0.15,2.0",
        "3,1.5,0.5,0.4,,",
        "4,2,1.0,0.3,0.35,",
    ]
    check_table(page, view)
    assert check_csv(page, view) == rows
    tab = run_tab(page)
    check_table(page, tab)
    assert check_csv(page, tab) == rows
    tab.get_by_role("button", name="Table", exact=True).click()
    shoot("metrics-table")


def test_all_points_of_a_long_run_are_saved_from_the_panel(lab, page):
    view = staged_panel(lab, page, "long.ipynb", more=20_000)
    expect(chart(view, "loss").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("after 20004 steps")
    )
    lines = check_csv(page, view)
    assert len(lines) == 20_005
    assert lines[-1] == "20004,,1.5,,,"


def test_the_lowest_and_the_highest_value_are_marked(lab, page, shoot):
    view = staged_panel(lab, page, "marks.ipynb")
    plot = chart(view, "loss").get_by_role("img")
    expect(plot).to_have_attribute(
        "aria-label", "loss: 1 after 4 steps; lowest 0.5 at 3, highest 3 at 1"
    )
    plot.focus()
    for text in ("3 (highest) at 1", "2 at 2", "0.5 (lowest) at 3", "1 at 4"):
        page.keyboard.press("ArrowRight")
        expect(chart(view, "loss").locator(".nbmgpu-chart-value")).to_have_text(text)
    # The cursors of the other charts follow.  The frame is around the chart, legend included.
    expect(chart(view, "acc").locator(".nbmgpu-chart-value")).to_have_text("4")
    expect(chart(view, "acc").locator(".nbmgpu-chart-entry-value")).to_have_text(["0.3", "0.35"])
    expect(plot).to_have_css("outline-style", "none")
    expect(chart(view, "loss")).to_have_css("outline-style", "solid")
    # Each of two lines has marks; two points have none.
    expect(chart(view, "acc").locator(".nbmgpu-chart-name")).to_have_attribute(
        "title", "acc\ntrain/acc: lowest 0.1 at 1, highest 0.4 at 3"
    )
    few = chart(view, "few").get_by_role("img")
    expect(few).to_have_attribute("aria-label", "few: 2 after 2 steps")
    shoot("marks-focus")
    page.keyboard.press("Escape")
    expect(chart(view, "acc").locator(".nbmgpu-chart-value")).to_have_text("")
    shoot("marks")


LINES = """
for name, scale in (("train/f1", 1.0), ("val/f1", -1e-7), ("test/f1", 54321.0)):
    staged.points(name, [1, 2, 3, 4], [0.5 * scale, 0.1234 * scale, scale, 0.2345 * scale])
for step in range(1, 5):
    for rank in range(2):
        staged.heartbeat(rank, step, step_time=(0.0123, 0.345)[step % 2], own_time=0.1 * step)
"""

BOXES = """view => [...view.querySelectorAll("figure, figure [role=img], .nbmgpu-chart-entry")].map(
    node => JSON.stringify(node.getBoundingClientRect()))"""


def test_values_at_the_cursor_move_nothing_and_three_lines_have_marks(lab, page, shoot):
    stage = STAGE.format(more=0).replace("staged.progress(1", LINES + "staged.progress(1", 1)
    open_notebook(page, lab.write("three-lines.ipynb", stage))
    run_all(page)
    view = panel(page)
    figure = chart(view, "f1")
    expect(figure.locator(".nbmgpu-chart-entry")).to_have_count(3)
    expect(figure.locator(".nbmgpu-chart-name")).to_have_attribute(
        "title",
        "f1\ntrain/f1: lowest 0.1234 at 2, highest 1 at 3\n"
        "val/f1: lowest -1e-7 at 3, highest -1.23e-8 at 2\n"
        "test/f1: lowest 6,703 at 2, highest 54,321 at 3",
    )
    figure.get_by_role("img").focus()
    at_rest = view.evaluate(BOXES)
    for step in range(1, 5):
        page.keyboard.press("ArrowRight")
        expect(figure.locator(".nbmgpu-chart-value")).to_have_text(str(step))
        assert view.evaluate(BOXES) == at_rest
        if step == 3:
            expect(figure.locator(".nbmgpu-chart-entry-value")).to_have_text(
                ["1 max", "-1e-7 min", "54,321 max"]
            )
            shoot("three-lines")
    # The step time has lines of other lengths than its last values, also below the pointer.
    times = chart(view, "step time")
    times.get_by_role("img").hover()
    expect(times.locator(".nbmgpu-chart-entry-value").first).to_have_text(re.compile("ms m"))
    assert view.evaluate(BOXES) == at_rest
    shoot("step-time")


SVG = "{http://www.w3.org/2000/svg}"

MORE = """
staged.points("gap", list(range(1, 8)), [4.0, 3.0, float("nan"), 2.0, float("inf"), 1.0, 0.5])
staged.points("a<b>&\\"c\\"", [1, 2], [1.0, 2.0])
"""


def save_svg(page, figure):
    """Click SVG; return the root of the document that is downloaded."""
    figure.hover()
    with page.expect_download() as download:
        figure.get_by_role("button", name="Download this chart as SVG").click()
    assert download.value.suggested_filename.endswith(".svg")
    return ElementTree.fromstring(download.value.path().read_bytes())


def texts(svg):
    return [text.text for text in svg.iter(f"{SVG}text")]


def luminance(color):
    """The relative luminance of ``#rrggbb``, as WCAG defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(svg):
    """The contrast of title and background."""
    background = svg.find(f"{SVG}rect").get("fill")
    pair = sorted(luminance(color) for color in (background, svg.find(f"{SVG}text").get("fill")))
    return (pair[1] + 0.05) / (pair[0] + 0.05), luminance(background)


def test_a_chart_is_saved_as_svg(lab, page, shoot):
    stage = STAGE.format(more=0).replace("staged.progress(1", MORE + "staged.progress(1", 1)
    open_notebook(page, lab.write("svg.ipynb", stage))
    run_all(page)
    view = panel(page)
    expect(chart(view, "few")).to_be_visible()

    loss = save_svg(page, chart(view, "loss"))
    (path,) = loss.iter(f"{SVG}path")
    assert path.find(f"{SVG}title").text == "loss"
    assert path.get("stroke") == "#3b82f6"
    assert len(re.findall("[ML]", path.get("d"))) == 4
    shown = texts(loss)
    assert (shown[0], shown[-1]) == ("loss", "Step")
    assert {"1", "2", "3", "4"} < set(shown)  # of both axes
    # Rings mark the lowest and the highest value, where the line has points.
    points = re.findall(r"[ML]([\d.]+ [\d.]+)", path.get("d"))
    circles = {True: [], False: []}
    for circle in loss.iter(f"{SVG}circle"):
        circles[circle.get("fill") == "none"].append(f"{circle.get('cx')} {circle.get('cy')}")
    assert set(circles[True]) == {points[0], points[2]}
    assert circles[False] == points  # they are far apart
    assert float(points[0].split()[1]) < float(points[1].split()[1])  # higher values are above
    ratio, brightness = contrast(loss)
    assert ratio > 4.5
    assert brightness > 0.9

    # Lines of a chart have a path and an entry of the legend each, with its value.
    accuracy = save_svg(page, chart(view, "acc"))
    lines = list(accuracy.iter(f"{SVG}path"))
    assert [line.find(f"{SVG}title").text for line in lines] == ["train/acc", "val/acc"]
    assert {"train/acc 0.3", "val/acc 0.35"} < set(texts(accuracy))
    # The end of the first epoch is dashed, as in the chart.
    dashed = [line for line in accuracy.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    assert len(dashed) == len({line.get("x1") for line in dashed}) == 2

    # Values that are no numbers are gaps; a point between two gaps is a dot.
    (gap,) = save_svg(page, chart(view, "gap")).iter(f"{SVG}path")
    assert len(re.findall("M", gap.get("d"))) == 3
    assert len(re.findall("L", gap.get("d"))) == 2

    odd = save_svg(page, view.get_by_role("figure").filter(has_text='a<b>&"c"'))
    assert texts(odd)[0] == 'a<b>&"c"'

    # A smoothed line is drawn over a faint one; a logarithmic scale has labels of its own.
    view.get_by_label("Smoothing").fill("0.5")
    view.get_by_role("button", name="Log scale").click()
    smoothed = save_svg(page, chart(view, "loss"))
    opacities = [line.get("stroke-opacity") for line in smoothed.iter(f"{SVG}path")]
    assert opacities == ["0.35", "1"]

    # In a dark theme, the background comes with it.
    page.evaluate(
        "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    page.wait_for_timeout(300)  # the style sheet of the theme is loaded after the attribute is set
    dark = save_svg(page, chart(view, "loss"))
    ratio, brightness = contrast(dark)
    assert ratio > 4.5
    assert brightness < 0.1
    shoot("svg")

    # As a picture in a page, it is drawn in its own size.
    page.goto("about:blank")
    source = base64.b64encode(ElementTree.tostring(accuracy)).decode()
    page.set_content(f"<img src='data:image/svg+xml;base64,{source}'>")
    size = page.get_by_role("img").evaluate(
        "img => img.decode().then(() => [img.width, img.height])"
    )
    assert size == [int(accuracy.get("width")), int(accuracy.get("height"))]
    shoot("svg-drawn")


RUN = """\
%%mgpu --gpus 2 --cpu --strategy none
import nbmgpu
for step in range(1, 4):
    nbmgpu.log(loss=1 / step)
"""


def test_the_summary_has_a_table_and_saves_csv(lab, page, shoot):
    url = lab.write("summary.ipynb", "%load_ext nbmgpu", RUN)
    open_notebook(page, url)
    run_all(page)
    output = cell_output(page, 1)
    output.get_by_text("1 metric as a table").click()
    assert output.locator("table tr").all_inner_texts() == [
        "Metric\tFirst\tLast\tLowest\tHighest\tPoints",
        "loss\t1\t0.3333\t0.3333 at step 2\t1 at step 0\t3",
    ]
    shoot("summary-table")
    rows = ["step,loss", "0,1.0", "1,0.5", "2,0.3333333333333333"]

    def check():
        with page.expect_download() as download:
            output.get_by_role("link", name="CSV").click()
        assert re.fullmatch(r"2[0-9]{7}-.*-metrics\.csv", download.value.suggested_filename)
        assert download.value.path().read_text().splitlines() == rows

    check()
    # The saved notebook holds the file, without the run and the kernel.
    save(page)
    open_notebook(page, url)
    output.get_by_text("1 metric as a table").click()
    check()
