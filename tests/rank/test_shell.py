"""The shell of a rank, in which the cell runs."""

import nbmgpu


def test_an_environment_that_is_activated_elsewhere_is_none_of_its_business(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    run = nbmgpu.run("print('line')", {}, gpus=2, cpu=True)
    assert [run.log(rank) for rank in range(2)] == ["line\n", "line\n"]
