"""A run that logs for TensorBoard: panel and tab open it, behind the server's login."""

import pytest
from browsing import cell_output, command, open_and_run, panel, state
from lab_server import serving
from playwright.sync_api import expect

pytest.importorskip("tensorboard")

pytestmark = pytest.mark.browser

LOAD = "%load_ext nbmgpu"
SETUP = (
    "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter('logs of a cell')"
)
CELL = """\
%%mgpu --gpus 2 --cpu
import pathlib, time
for step in range(1, 5):
    writer.add_scalar("accuracy of ten", step / 10, step)
writer.flush()
while not pathlib.Path("stop").exists():
    time.sleep(0.1)
"""


def boards(view):
    return view.get_by_role("region", name="TensorBoard")


def open_board(page, view, shoot):
    """Click on the link, and wait for TensorBoard with the points of the cell."""
    with page.expect_popup() as popup:
        boards(view).get_by_role("link", name="Open in TensorBoard").click()
    board = popup.value
    expect(board).to_have_title("TensorBoard", timeout=60_000)
    expect(board.get_by_text("accuracy of ten").first).to_be_visible(timeout=60_000)
    shoot("tensorboard", board)
    board.close()


def running_panel(page, server, name):
    open_and_run(page, server.write(name, LOAD, SETUP, CELL))
    expect(state(page)).to_have_text("running", timeout=60_000)
    expect(boards(panel(page))).to_contain_text("logs of a cell", timeout=60_000)
    return panel(page)


def stop(view):
    view.get_by_role("button", name="Stop", exact=True).click()
    expect(view.get_by_role("button", name="Stop", exact=True)).to_have_count(0, timeout=60_000)


def test_panel_and_tab_open_tensorboard(lab, page, shoot):
    view = running_panel(page, lab, "board.ipynb")
    expect(boards(view).get_by_role("link")).to_be_visible()
    shoot("tensorboard-panel")
    open_board(page, view, shoot)
    command(page, "nbmgpu:open-run")
    tab = page.locator(".nbmgpu-RunTab").get_by_role("region", name="Run on several ranks")
    stop(tab)
    open_board(page, tab, shoot)  # also when the run is over


def test_without_the_server_extension_the_command_is_shown(page, built, tmp_path):
    with serving("lab", tmp_path, extended=False) as plain:
        view = running_panel(page, plain, "plain.ipynb")
        folder = plain.folder / "logs of a cell"
        shown = f"TensorBoard, in a terminal: tensorboard --logdir '{folder}'"
        expect(boards(view)).to_have_text(shown)
        expect(boards(view).get_by_role("link")).to_have_count(0)
        # The summary that the notebook keeps says it as well.
        stop(view)
        expect(cell_output(page, 2)).to_contain_text(
            f"TensorBoard: tensorboard --logdir '{folder}'"
        )
