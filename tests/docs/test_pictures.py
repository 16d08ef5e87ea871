"""The pictures of strategies are those that tools/strategy_pictures.py draws."""

from __future__ import annotations

import re
import sys

import pytest
from markdown_blocks import REPOSITORY

from nbmgpu.strategies import strategy_names

sys.path.append(str(REPOSITORY / "tools"))

from strategy_layouts import EVERYTHING, PICTURES, Picture
from strategy_pictures import FOLDER, svg

PAGE = REPOSITORY / "docs" / "strategies-in-pictures.md"

each_picture = pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)


@each_picture
def test_files_are_up_to_date(picture: Picture) -> None:
    assert (FOLDER / picture.file).read_text() == svg(picture), "run tools/strategy_pictures.py"


@each_picture
def test_the_page_shows_each_picture_and_says_what_is_in_it(picture: Picture) -> None:
    assert f"![{picture.alt}](images/strategies/{picture.file})" in PAGE.read_text()


def test_there_is_no_other_picture() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {picture.file for picture in PICTURES}


def test_the_page_names_every_strategy() -> None:
    page = PAGE.read_text()
    for name in strategy_names():
        assert re.search(rf"`{re.escape(name)}`|^## .*\b{re.escape(name)}\b", page, re.M), name


@each_picture
def test_nothing_of_the_model_is_missing(picture: Picture) -> None:
    if picture.name == "none":
        return
    for kind in ("parameters", "gradients", "states", "activations"):
        held = frozenset().union(*(getattr(rank, kind) for rank in picture.ranks))
        assert held == EVERYTHING, kind
