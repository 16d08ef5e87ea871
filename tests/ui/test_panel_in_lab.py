"""The panel in JupyterLab, and the outputs of the saved notebook."""

import re
import textwrap

import pytest
from browsing import open_and_run, open_notebook, panel, run_all, save, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# A staged run in the kernel. The cell awaits, so the kernel handles messages of the panel.
STAGE = """
import asyncio, math, random
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel
from nbmgpu.report.summary import summary_html, summary_text

lines = ["for x, y in loader:", "    loss = criterion(model(x), y)", "    loss.backward()"]
staged = StagedRun(2, cell="\\n".join(lines), batch_line="global batch 64 = 2 ranks x 32")
run = staged.run
clicks = []
panel = RunPanel(run)

@panel.on_stop
def stop(force):
    clicks.append(force)
    run.stop(force)

async def live_on(seconds=60):
    for _ in range(int(20 * seconds)):
        run.poll()
        panel.refresh()
        if True in clicks:
            break
        await asyncio.sleep(0.05)

handle = display(panel, display_id=True)
staged.start()
"""
PLAY = """
staged.notice("`nn.Dropout` draws <b>other</b> numbers")
for rank in range(2):
    layers = {{"embed": 512, "layers.0": 2048, "layers.1": 2048, "head": 512}}
    owned = {{"layers.0": 2048 * (rank == 0), "layers.1": 2048 * (rank == 1)}}
    staged.shards(rank, layers, {{"embed": 256}} | owned | {{"head": 256}})
for step in range({steps}):
    for rank in range(2):
        staged.points("loss", [step], [math.exp(-step / 20)], rank)
        staged.log(rank, f"rank {{rank}} at step {{step}}\\n")
        if step % 20 == 0:
            staged.heartbeat(rank, step, own_time=0.002 + 0.005 * rank)
    staged.progress(step + 1, {steps})
    await live_on(0.05)
    if True in clicks:
        break
staged.finish()
run.poll()
panel.refresh()
print("clicks:", clicks)
handle.update({{"text/html": summary_html(run), "text/plain": summary_text(run)}}, raw=True)
"""


def play(steps):
    return STAGE + PLAY.format(steps=steps)


def shows(scene):
    """Return a cell whose run stays in the state of ``scene`` until the page is closed."""
    return STAGE + textwrap.dedent(scene) + "\nawait live_on()\n"


def chart(page, name="loss"):
    return panel(page).get_by_role("img", name=re.compile(f"^{name}: .* after [0-9]+ steps"))


def steps(page):
    return int(re.search("after ([0-9]+) steps", chart(page).get_attribute("aria-label"))[1])


def ink(page, name="loss"):
    """Return the number of non-transparent pixels of a chart."""
    return (
        chart(page, name)
        .locator("canvas")
        .evaluate(
            """canvas => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
            return count;
        }"""
        )
    )


def tab(page, name):
    return panel(page).get_by_role("tab", name=name, exact=True)


def log(page):
    return panel(page).get_by_role("region", name=re.compile("^Log of "))


def tool(page, name):
    return panel(page).get_by_role("button", name=name, exact=True)


def force_stop(page):
    tool(page, "Stop").click()
    tool(page, "Force stop").click()


def test_the_panel_is_live_and_the_file_keeps_a_summary(lab, page):
    open_and_run(page, lab.write("live.ipynb", play(steps=60)))
    expect(chart(page).locator("canvas")).to_be_visible()
    before = steps(page)
    expect(chart(page)).not_to_have_attribute("aria-label", re.compile(rf"after {before} steps"))
    assert steps(page) > before
    assert ink(page) > 500
    bar = panel(page).get_by_role("progressbar", name="epoch 1")
    expect(bar).to_have_attribute("aria-valuetext", re.compile("^[1-9][0-9]* / 60$"))
    expect(panel(page)).to_contain_text("ddp on 2 ranks (cpu)")
    expect(panel(page)).to_contain_text("global batch 64 = 2 ranks x 32")
    expect(panel(page)).to_contain_text(re.compile("about [0-9]+ s left in epoch 1"))
    notices = panel(page).get_by_role("list", name="Notices")
    expect(notices).to_have_text("nn.Dropout draws <b>other</b> numbers")
    expect(notices.get_by_role("code")).to_have_text("nn.Dropout")
    ranks = panel(page).get_by_role("table", name="Ranks")
    expect(ranks.get_by_role("meter", name="CPU of rank 1")).to_have_text("50 %")
    expect(page.get_by_text("✓ finished")).to_be_visible()
    expect(page.locator(".jp-OutputArea svg polyline").first).to_be_visible()
    expect(panel(page)).to_have_count(0)
    save(page)
    (shown, *_) = [o for o in lab.read("live.ipynb").cells[0].outputs if "data" in o]
    assert set(shown.data) == {"text/html", "text/plain"}
    assert "<polyline" in shown.data["text/html"]
    assert "finished  ddp on 2 ranks (cpu)" in shown.data["text/plain"]


def test_stop_asks_first_and_then_forces(lab, page):
    open_and_run(page, lab.write("stop.ipynb", play(steps=2000)))
    tool(page, "Stop").dblclick()  # a double click counts once
    expect(state(page)).to_have_text("stopping")
    force = tool(page, "Force stop")
    expect(force).to_be_visible()
    page.wait_for_timeout(300)
    expect(force).to_be_enabled()
    force.click()
    expect(page.get_by_text("clicks: [False, True]")).to_be_visible()


def test_logs_and_shards_by_mouse_and_keyboard(lab, page, shoot):
    open_and_run(page, lab.write("logs.ipynb", play(steps=2000)))
    expect(log(page)).to_have_count(0)
    tab(page, "Log of rank 1").click()
    expect(tab(page, "Log of rank 1")).to_have_attribute("aria-selected", "true")
    expect(log(page)).to_contain_text("rank 1 at step")
    # The keys do not reach the notebook, where Enter edits and arrows select cells.
    page.keyboard.press("ArrowLeft")
    expect(tab(page, "Log of rank 0")).to_be_focused()
    expect(log(page)).to_contain_text("rank 0 at step")
    expect(log(page)).not_to_contain_text("rank 1 at step")
    page.keyboard.press("Home")
    expect(log(page)).to_contain_text("rank 1 at step")
    expect(log(page)).to_contain_text("rank 0 at step")
    page.keyboard.press("Enter")
    expect(log(page)).to_have_count(0)
    # A row of the table opens its rank's log as well.
    tool(page, "Log of rank 1, running").click()
    expect(log(page)).to_have_attribute("aria-label", "Log of rank 1")
    # Which rank holds what is folded at first.
    table = panel(page).get_by_role("table", name="Parameters that each rank stores")
    expect(table).to_have_count(0)
    panel(page).get_by_text("Which rank holds what").focus()
    page.keyboard.press("Enter")
    expect(table.get_by_role("row", name="layers.1 2,048 0 % 100 %")).to_be_visible()
    expect(table.get_by_role("row", name="All layers 5,120 10.0 KiB 10.0 KiB")).to_be_visible()
    filled = "cell => getComputedStyle(cell).backgroundSize"
    head = table.get_by_role("cell", name="50 %").first
    assert head.evaluate(filled).startswith("50%")
    shoot("shards")
    # So are the charts of what ranks use.
    memory = panel(page).get_by_role("img", name="memory: rank 0 256 MiB, rank 1 256 MiB")
    expect(memory).to_have_count(0)
    panel(page).get_by_text("System", exact=True).focus()
    page.keyboard.press("Enter")
    expect(memory).to_be_visible()
    expect(panel(page).get_by_role("img", name="CPU, of one core: rank 0 50 %")).to_be_visible()
    shoot("system")
    force_stop(page)


LONG = """
for rank in range(2):
    staged.log(rank, "".join(f"rank {rank} line {n}\\n" for n in range(100_000)))
    staged.log(rank, "UserWarning: look out\\n", stderr=True)
    staged.log(rank, "\\x1b[31mred\\x1b[0m and done\\n")
    staged.heartbeat(rank)
"""


def lines_in_page(page):
    return log(page).locator(".nbmgpu-line").count()


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_a_log_of_100_000_lines(lab, page):
    open_and_run(page, lab.write("long.ipynb", shows(LONG)))
    tab(page, "Log of rank 1").click()
    # It follows: only the end is rendered.
    expect(log(page)).to_contain_text("red and done")
    expect(panel(page)).to_contain_text("100,002 lines")
    assert lines_in_page(page) < 40
    expect(log(page).locator("[data-stderr]")).to_contain_text("UserWarning: look out")
    red = log(page).get_by_text("red", exact=True)
    assert red.evaluate("node => getComputedStyle(node).color") == "rgb(217, 83, 79)"
    # After the user scrolls, it does not follow.
    log(page).focus()
    page.keyboard.press("Home")
    expect(log(page)).to_contain_text("rank 1 line 0\n".strip())
    expect(tool(page, "Follow")).to_have_attribute("aria-pressed", "false")
    begun = page.evaluate("performance.now()")
    log(page).hover()
    for _ in range(10):
        page.mouse.wheel(0, 150_000)
        page.wait_for_timeout(30)
    expect(log(page)).to_contain_text(re.compile(r"rank 1 line [1-9]\d{4}"))
    assert page.evaluate("performance.now()") - begun < 5000
    assert lines_in_page(page) < 40
    tool(page, "Follow").click()
    expect(log(page)).to_contain_text("red and done")
    # Search results are highlighted and lead to the line in context.
    search = panel(page).get_by_role("searchbox", name="Search the log")
    search.fill("LINE 4242")
    expect(panel(page)).to_contain_text("11 found")  # 4242 and 42420 to 42429
    expect(log(page).locator("mark").first).to_have_text("line 4242")
    log(page).get_by_text("rank 1 ").first.click()
    expect(log(page)).to_contain_text("rank 1 line 4241")
    expect(log(page)).to_contain_text("rank 1 line 4243")
    expect(search).to_have_value("")
    search.fill("nowhere")
    expect(log(page)).to_contain_text("No line contains this")
    search.fill("")
    with page.expect_download() as saved:
        tool(page, "Download").click()
    assert saved.value.suggested_filename.endswith("-rank-1.log")
    text = saved.value.path().read_text()
    assert len(text.splitlines()) == 100_002
    assert text.endswith("rank 1 line 99999\nUserWarning: look out\nred and done\n")


def test_a_reloaded_page_is_complete_and_live(lab, page):
    url = lab.write("reload.ipynb", play(steps=2000))
    open_and_run(page, url)
    tab(page, "Log of rank 1").click()
    tool(page, "Log scale").click()
    expect(chart(page).locator("canvas")).to_be_visible()
    before = steps(page)
    save(page)
    page.goto(url.replace("&reset", ""))
    expect(state(page)).to_have_text("running")
    assert steps(page) >= before
    assert ink(page) > 500
    expect(log(page)).to_contain_text("rank 1 at")
    expect(tool(page, "Log scale")).to_have_attribute("aria-pressed", "true")
    after = steps(page)
    expect(chart(page)).not_to_have_attribute("aria-label", re.compile(rf"after {after} steps"))
    force_stop(page)


CURVES = """
chance = random.Random(0)
for start in range(0, 100_000, 1000):
    steps = list(range(start, start + 1000))
    values = [math.exp(-step / 30_000) + 0.3 * chance.random() for step in steps]
    staged.points("loss", steps, values)
staged.points("lr", list(range(100)), [1e-3] * 100)
for step in range(1, 6):
    for rank in range(2):
        staged.heartbeat(rank, 20_000 * step, own_time=0.002 + 0.005 * rank, sent=[3072.0, 2.0])
"""


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_curves_of_100_000_points(lab, page):
    open_and_run(page, lab.write("curves.ipynb", shows(CURVES)))
    loss = chart(page)
    expect(loss).to_have_attribute("aria-label", re.compile("after 100000 steps"))
    raw = ink(page)
    assert raw > 1000
    # Hovering shows the value; all charts share the cursor.
    loss.hover(position={"x": 160, "y": 60})
    card = loss.locator("xpath=..")
    expect(card).to_contain_text(re.compile(r"0\.\d+ at \d{5}"))
    page.mouse.move(5, 5)
    expect(card).not_to_contain_text(" at ")
    # The arrow keys do the same.
    loss.focus()
    page.keyboard.press("ArrowRight")
    expect(card).to_contain_text(" at 0")
    # Dragging zooms in at a higher resolution; a double click resets the zoom.
    for _ in range(2):
        box = loss.bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 108, box["y"] + 60, steps=5)
        page.mouse.up()
        expect(tool(page, "Whole run")).to_be_visible()
        page.wait_for_timeout(500)
    loss.focus()
    walked = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        walked.append(
            int(re.search(r" at (\d+)$", card.locator(".nbmgpu-chart-value").inner_text())[1])
        )
    assert walked == [walked[0], walked[0] + 1, walked[0] + 2]
    loss.dblclick(position={"x": 120, "y": 60})
    expect(tool(page, "Whole run")).to_be_hidden()
    page.mouse.move(5, 5)
    # Smoothing, the scale, and which metrics are shown.
    panel(page).get_by_role("slider", name="Smoothing").fill("0.5")
    assert ink(page) != raw
    tool(page, "Log scale").click()
    expect(tool(page, "Log scale")).to_have_attribute("aria-pressed", "true")
    metrics = panel(page).get_by_role("group", name="Metrics shown")
    metrics.get_by_role("button", name="lr").click()
    expect(chart(page, "lr")).to_have_count(0)
    expect(loss).to_be_visible()
    # The slowest rank is reported below, and in the table.
    step_time = chart(page, "step time")
    expect(step_time).to_be_visible()
    expect(step_time).to_have_attribute(
        "aria-label", re.compile(r"10 ms after [\d,]+ steps; a rank sends 3.0 KiB in 2 collectives")
    )
    expect(panel(page)).to_contain_text("Rank 1 is the slowest: the others wait for it 50 %")
    table = panel(page).get_by_role("table", name="Ranks")
    expect(table).to_contain_text("slow: the others wait for it 50 % of the time")


ONE_POINT_FIRST = """
staged.points("loss", [0], [1.0])
await live_on(2)
staged.points("loss", list(range(1, 601)), [math.exp(-step / 300) for step in range(1, 601)])
"""


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_points_are_drawn_only_where_there_are_few(lab, page, shoot):
    open_and_run(page, lab.write("points.ipynb", shows(ONE_POINT_FIRST)))
    expect(chart(page)).to_have_attribute("aria-label", re.compile("after 1 steps"))
    page.wait_for_timeout(500)
    single = ink(page)
    expect(chart(page)).to_have_attribute("aria-label", re.compile("after 601 steps"))
    page.wait_for_timeout(500)
    shoot("chart-that-began-with-one-point")
    many = ink(page)
    for _ in range(2):  # recreates the chart
        tool(page, "Log scale").click()
    page.wait_for_timeout(500)
    assert abs(many - ink(page)) < 50
    assert single > 0


FAILURE = """
trace = ["\\x1b[31mIndexError\\x1b[39m  Traceback", "----> 2 loss = criterion(model(x), y)"]
staged.fail(1, "IndexError", "Target 17 is out of bounds. <b>", 2, tuple(trace))
staged.exit(1, 1)
staged.exit(0, -15)
staged.end("failed")
"""


def test_the_failure_card(lab, page):
    open_notebook(page, lab.write("failure.ipynb", shows(FAILURE)))
    run_all(page)
    expect(state(page)).to_have_text("failed")
    card = panel(page).get_by_role("alert")
    expect(card).to_contain_text("rank 1 failed")
    expect(card).to_contain_text("IndexError: Target 17 is out of bounds. <b>")
    failing = card.locator("[data-failing]")
    expect(failing).to_have_text("2    loss = criterion(model(x), y)")
    expect(card).to_contain_text("for x, y in loader:")  # its context
    expect(card).to_contain_text("Likely cause: A label exceeds the model")
    expect(card).to_contain_text("Try: as many outputs")
    trace = card.get_by_text("----> 2 loss")
    expect(trace).to_be_hidden()
    card.get_by_text("Traceback of rank 1").click()
    expect(trace).to_be_visible()
    expect(card.get_by_text("rank 0: ended (SIGTERM)")).to_be_hidden()
    card.get_by_text("Other ranks (1)").click()
    expect(card.get_by_text("rank 0: ended (SIGTERM)")).to_be_visible()
    expect(tool(page, "Stop")).to_have_count(0)


def colour(node):
    """The colour of a node's text: red, green, blue."""
    text = node.evaluate("node => getComputedStyle(node).color")
    return [int(float(n)) for n in re.findall(r"[\d.]+", text)[:3]]


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_follows_the_theme_and_fits_a_narrow_output(lab, page):
    open_and_run(page, lab.write("theme.ipynb", shows(CURVES + LONG)))
    tab(page, "Log of all ranks").click()
    title = panel(page).get_by_text("ddp on 2 ranks (cpu)")
    assert max(colour(title)) < 128
    theme = "window.jupyterapp.commands.execute('apputils:change-theme', {theme: '%s'})"
    page.evaluate(theme % "JupyterLab Dark")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    page.wait_for_timeout(500)
    assert min(colour(title)) > 128
    axis = (
        chart(page)
        .locator("canvas")
        .evaluate(
            """canvas => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, 30, canvas.height);
            let brightest = 0;
            for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 100)
                brightest = Math.max(brightest, data[i]);
            return brightest;
        }"""
        )
    )
    assert axis > 128  # the numbers beside the axis
    page.set_viewport_size({"width": 760, "height": 900})
    page.wait_for_timeout(300)
    root = panel(page)
    assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert ink(page) > 500
    stop, whole = tool(page, "Stop").bounding_box(), root.bounding_box()
    assert stop["x"] + stop["width"] <= whole["x"] + whole["width"]
    page.evaluate(theme % "JupyterLab Light")


def test_a_widget_without_a_built_front_end_shows_a_message(lab, page):
    cell = """
from pathlib import Path
from nbmgpu.ui import assets
assets.FOLDER = Path("nowhere")
"""
    open_notebook(page, lab.write("unbuilt.ipynb", cell + shows("")))
    run_all(page)
    expect(page.locator(".jp-OutputArea-output")).to_contain_text("is not built")
