"""Which packages a cell uses, and in which versions."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from nbmgpu.environment import packages
from nbmgpu.environment.packages import differences, imported_in, versions_of


def test_imports_are_found_wherever_they_are() -> None:
    code = "import a.b, c as d\ndef f(): from e.f import g\nfrom . import h\nfrom .i import j\n"
    assert imported_in(code) == {"a.b", "c", "e.f"}


def test_a_namespace_of_several_distributions_belongs_to_none(monkeypatch) -> None:
    found = {"google": ["google-auth", "protobuf"], "sklearn": ["scikit-learn", "scikit-learn"]}
    monkeypatch.setattr(packages, "_search", lambda: found)
    assert versions_of(["google.protobuf", "sklearn"]) == {"scikit-learn": version("scikit-learn")}


@pytest.mark.parametrize("finder", ["importlib.metadata", "importlib_metadata"])
def test_a_folder_without_metadata_is_no_package(finder: str, tmp_path, monkeypatch) -> None:
    pytest.importorskip(finder)  # the second one takes over for the first, and raises
    (tmp_path / "left_behind-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert versions_of(["left_behind"]) == {}


def test_modules_belong_to_distributions_of_the_same_or_another_name() -> None:
    modules = ["numpy.linalg", "sklearn.datasets", "os", "torch.nn", "__main__", "beside_notebook"]
    expected = {"numpy": version("numpy"), "scikit-learn": version("scikit-learn")}
    assert versions_of(modules) == expected


def test_another_version_and_a_missing_package_are_named() -> None:
    wanted = {"numpy": version("numpy"), "scikit-learn": "0.1", "no-such-package": "2.0"}
    assert [str(each) for each in differences(wanted)] == [
        f"scikit-learn {version('scikit-learn')} instead of 0.1",
        "no-such-package missing instead of 2.0",
    ]
