"""The shell of a rank, in which the cell runs."""

import nbmgpu


def test_no_warning_for_a_virtual_environment_of_the_shell(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    run = nbmgpu.run("print('line')", {}, gpus=2, cpu=True)
    assert [run.log(rank) for rank in range(2)] == ["line\n", "line\n"]
