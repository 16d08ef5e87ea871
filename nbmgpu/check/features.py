"""Checks of what cells do with GPUs: streams, graphs, compilation, memory formats, kernels."""

from __future__ import annotations

import torch

from .cells import LANGUAGE, MLP, STEP, TRAIN, TRANSFORMER
from .check import Check, Finding
from .comparison import Cell, compare, float32_precision, notebook, run_on_ranks
from .device_memory import LeastMemory
from .setting import Setting

LARGE = 1 << 23
"""Elements of a tensor of the notebook, of 64 MiB."""

CONV = """
model = nn.Sequential(
    nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
    nn.Linear(32, 4),
).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
ADAM = "\nopt = torch.optim.AdamW(model.parameters(), lr=1e-2, {})"

ANYWHERE = (
    Cell("a fused optimizer", MLP + ADAM.format("fused=True"), TRAIN),
    Cell("a foreach optimizer", MLP + ADAM.format("foreach=True"), TRAIN),
    Cell(
        "a loader with workers",
        MLP + "loader = DataLoader(dataset, 8, num_workers=2)",
        TRAIN,
    ),
    Cell("channels last", CONV + "model.to(memory_format=torch.channels_last)", TRAIN),
    Cell(
        "deterministic algorithms",
        MLP + "torch.use_deterministic_algorithms(True)",
        TRAIN + "\ntorch.use_deterministic_algorithms(False)",
    ),
    Cell("a compiled model", MLP + "compiled = torch.compile(model)", TRAIN.replace(
        "model(x)", "compiled(x)"), tolerance=5),
    Cell("the device as default device", "torch.set_default_device(device)\n" + MLP
         + "loader = DataLoader(TensorDataset(X.to(device), Y.to(device)), 8)\n"
         "torch.set_default_device('cpu')", TRAIN),
)  # fmt: skip
"""Cells for ddp on any device."""

ON_CUDA = (
    Cell("cuda() on the model and batches", MLP.replace(".to(device)", ".cuda()"), TRAIN.replace(
        ".to(device)", ".cuda(non_blocking=True)")),
    Cell('"cuda:0" and the current device', MLP, TRAIN.replace(
        "x.to(device), y.to(device)", 'x.to("cuda:0"), y.to(torch.cuda.current_device())')),
    Cell("pinned batches, not waited for", MLP + (
        "loader = DataLoader(dataset, 8, pin_memory=True, num_workers=2)"), TRAIN.replace(
        ".to(device)", ".to(device, non_blocking=True)")),
    Cell("batches copied in a stream of their own", MLP, f"""
stream = torch.cuda.Stream()
for x, y in loader:
    with torch.cuda.stream(stream):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(torch.cuda.current_stream())
    y.record_stream(torch.cuda.current_stream())
    loss = F.cross_entropy(model(x), y){STEP}"""),
    Cell("a forward pass replayed from a CUDA graph", MLP + "frozen = copy.deepcopy(model)", f"""
frozen.requires_grad_(False)
static = torch.zeros(8, 16, device=device)
graph, warm = torch.cuda.CUDAGraph(), torch.cuda.Stream()
warm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(warm):
    frozen(static)
torch.cuda.current_stream().wait_stream(warm)
with torch.cuda.graph(graph):
    features = frozen(static)
for x, y in loader:
    x, y = x.to(device), y.to(device)
    static[: len(x)].copy_(x)
    graph.replay()
    loss = F.cross_entropy(model(x) + features[: len(x)], y){STEP}"""),
)  # fmt: skip
"""Cells for ddp on CUDA's GPUs."""

FLASH = Cell(
    "flash attention in bf16",
    TRANSFORMER,
    "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
    + LANGUAGE.replace(
        "    logits = model(batch[:, :-1])",
        "    with torch.autocast('cuda', torch.bfloat16), sdpa_kernel([\n"
        "        SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):\n"
        "        logits = model(batch[:, :-1])",
    ),
    tolerance=6000,
)


def checks() -> list[Check]:
    """Return the checks of this group."""
    return [
        *(_check(cell) for cell in ANYWHERE),
        *(_check(cell, on_cuda=True) for cell in (*ON_CUDA, FLASH)),
        Check("features", "results come back in place, on their device", _results_in_place),
        Check("features", "the notebook's memory is free meanwhile", _memory_is_free),
        Check("features", "a compiled step of --compile", _compile_option, quick=False),
    ]


def _check(cell: Cell, on_cuda: bool = False) -> Check:
    def function(setting: Setting) -> Finding:
        if on_cuda:
            setting.require_cuda()
        return compare(cell, setting)

    return Check("features", cell.name, function, cell.quick)


def _compile_option(setting: Setting) -> Finding:
    cell = Cell("", MLP, TRAIN, tolerance=5)
    return compare(cell, setting, compile=True)


def _results_in_place(setting: Setting) -> Finding:
    names = notebook(Cell("", MLP, TRAIN), setting)
    weights = list(names["model"].parameters())
    before = [(id(w), w.device) for w in weights]
    with float32_precision():
        run_on_ranks(TRAIN, names, setting)
    after = [(id(w), w.device) for w in names["model"].parameters()]
    assert before == after, "parameters are other tensors, or on another device, after the run"
    states = {s["momentum_buffer"].device.type for s in names["opt"].state.values()}
    assert states == {setting.device}, f"optimizer states came back on {states}"
    return Finding(f"parameters and states on {weights[0].device}")


def _memory_is_free(setting: Setting) -> Finding:
    """Check that the notebook's memory of the GPU is free while the ranks run."""
    setting.require_gpu()
    large = torch.arange(LARGE, device=setting.device)
    with LeastMemory() as least:
        run_on_ranks("total = large.sum()", {"large": large}, setting)
    freed = least.before - least.seen
    assert freed >= large.nbytes, f"{freed} of {large.nbytes} bytes were free during the run"
    expected = torch.arange(LARGE, device=setting.device)
    assert torch.equal(large, expected), "the tensor has other values after the run"
    return Finding(f"{freed >> 20} MiB were free during the run")
