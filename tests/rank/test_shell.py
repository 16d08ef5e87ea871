"""The shell of a rank, in which the cell runs."""

import pytest

import nbmgpu


def test_no_warning_for_a_virtual_environment_of_the_shell(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    run = nbmgpu.run("print('line')", {}, gpus=2, cpu=True)
    assert [run.log(rank) for rank in range(2)] == ["line\n", "line\n"]


def test_lines_for_the_shell_may_have_what_is_no_python():
    namespace = {}
    run = nbmgpu.run("!echo \\(\n%env OPEN=a'b\nvalue = 3", namespace, gpus=1, cpu=True)
    assert (run.state, namespace["value"]) == ("finished", 3)
    assert run.log(0).startswith("(\n")


def test_a_cell_that_is_no_python_fails_with_a_syntax_error():
    with pytest.raises(SyntaxError):
        nbmgpu.run("!echo a\nvalue = (", {}, gpus=1, cpu=True)
