"""Peak GPU memory per rank of a model that the notebook holds on the CPU, under tp, pp and fsdp.

Two ranks share one GPU (gpus=(0, 0)).  Each may use FRACTION of a whole model's bytes, so that a
rank that ever put the whole model on its GPU would run out of memory.  mp needs two visible GPUs.

    .venv/bin/python .dev/larger.py            # on a machine with a GPU; about 2 minutes
"""

import sys

import torch
from torch import nn

import nbmgpu

WIDTH, DEPTH = (4096, 12) if torch.cuda.is_available() else (256, 12)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.fc2 = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x):
        return x + self.fc2(self.fc1(self.norm(x)).relu())


CELL = """
import torch.distributed as dist
torch.cuda.set_per_process_memory_fraction(0.95 * whole / torch.cuda.get_device_properties(0).total_memory)
torch.cuda.reset_peak_memory_stats()
model.to("cuda")  # or model.cuda()
moved = torch.cuda.max_memory_allocated()
if trains:
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for p in list(model.parameters())[:-2]:
        p.requires_grad_(False)  # parameters are most of the memory
    for (x,) in loader:
        loss = model(x.cuda()).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
    last = loss.item()
else:
    with torch.no_grad():
        last = model(X[:8].cuda()).square().mean().item()
peaks = [None] * dist.get_world_size()
dist.all_gather_object(peaks, (moved / whole, torch.cuda.max_memory_allocated() / whole))
torch.cuda.set_per_process_memory_fraction(1.0)
"""

for strategy in ("tp", "pp", "fsdp"):
    for trains in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(DEPTH)))
        whole = sum(p.nbytes for p in model.parameters())
        X = torch.randn(16, WIDTH)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), 8)
        names = {**globals()}
        cell = CELL
        options = {"gpus": (0, 0)}
        if not torch.cuda.is_available():  # a rehearsal
            options = {"gpus": 2, "cpu": True}
            for old, new in (
                ('"cuda"', '"cpu"'),
                (".cuda()", ""),
                ("torch.cuda.set", "#"),
                ("torch.cuda.reset", "#"),
                ("torch.cuda.max_memory_allocated()", "0"),
            ):
                cell = cell.replace(old, new)
        try:
            nbmgpu.run(cell, names, strategy=strategy, **options)
            print(
                strategy,
                "trains" if trains else "infers",
                f"model {whole / 2**30:.2f} GiB; (after .to, peak) of the whole per rank:",
                [tuple(round(v, 3) for v in rank) for rank in names["peaks"]],
                "last",
                names["last"],
                {p.device.type for p in names["model"].parameters()},
                flush=True,
            )
        except Exception as error:
            print(strategy, trains, "FAILED", type(error).__name__, str(error)[:1500], flush=True)
