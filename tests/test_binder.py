"""The Binder configuration matches the package; tools/binder.py rehearses the build itself."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tools"))

import binder  # noqa: E402


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=;\s\[]", requirement)[0] for requirement in requirements}


def is_for_this_python(requirement: str) -> bool:
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate()


def test_all_dependencies_are_preinstalled():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    given = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    needed = names([each for each in given if is_for_this_python(each)])
    assert needed - set(binder.packages()) == set()


def test_the_rehearsal_uses_cpu_torch():
    (torch,) = [r for r in binder.requirements() if r.startswith("torch")]
    assert re.fullmatch(r"torch==[\d.]+(\+cpu)?", torch)
    assert not names(binder.requirements()) & binder.PROVIDED


def test_post_build_is_executable():
    assert os.access(REPOSITORY / "binder" / "postBuild", os.X_OK)


def test_the_workspace_opens_an_existing_notebook_and_sidebar():
    workspace = json.loads((REPOSITORY / "binder" / "workspace.json").read_text())
    layout = workspace["data"]["layout-restorer:data"]
    (tab,) = layout["main"]["dock"]["widgets"]
    assert (REPOSITORY / tab.removeprefix("notebook:")).exists()
    assert workspace["data"][tab]["data"]["path"] == tab.removeprefix("notebook:")
    sidebar = (REPOSITORY / "labextension" / "src" / "lab" / "sidebar").glob("*.ts")
    assert any(f"'{layout['right']['current']}'" in source.read_text() for source in sidebar)


@pytest.mark.parametrize("name", ["overrides.json", "workspace.json"])
def test_post_build_installs_the_settings(name):
    assert f"binder/{name}" in (REPOSITORY / "binder" / "postBuild").read_text()
