import pytest
from runs_folder import runs_folder  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _hub(tmp_path_factory):
    """An empty cache of Hugging Face's hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        yield
