import time

import pytest
from runs_folder import runs_folder  # noqa: F401

from nbmgpu.engines.registry import get_engine


@pytest.fixture(autouse=True, scope="session")
def _hub(tmp_path_factory):
    """An empty cache of Hugging Face's hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _libraries(_hub):
    """The libraries are imported once, in the fork server: in each rank that takes seconds."""
    import lightning.pytorch  # noqa: F401
    from transformers import (  # noqa: F401
        BertForSequenceClassification,
        GPT2LMHeadModel,
        LlamaForCausalLM,
        Trainer,
    )

    engine = get_engine()
    engine.preload()
    used, until = -1.0, time.monotonic() + 60
    while (now := engine.preload_cpu_seconds()) - used > 0.1 and time.monotonic() < until:
        used = now
        time.sleep(1)
