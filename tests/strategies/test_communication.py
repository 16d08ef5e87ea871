"""The bytes that a rank sends per step are those of the strategy, in its measurements and view."""

import timeit

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu
from nbmgpu.strategies import communication

TRAIN = """
import time
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    time.sleep(0.3)  # heartbeats are a second apart
"""

CHECKS = 1024
"""More bytes than a step sends for checks: whether ranks used the same parameters and divisors."""

EACH_COLLECTIVE = """
import torch, torch.distributed as dist
from nbmgpu.strategies import collectives
from nbmgpu.strategies.communication import counter
rank, sent, counted = dist.get_rank(), {}, counter.collectives

def count(name, call):
    before = counter.sent
    call()
    sent[name] = counter.sent - before

def point_to_point():
    work = dist.isend(eight, 1 - rank)
    dist.recv(torch.empty(8), 1 - rank)
    work.wait()

eight, sixteen = torch.ones(8), torch.ones(16)
halves = [torch.empty(8), torch.empty(8)]
count("all_reduce", lambda: dist.all_reduce(eight))
count("shared", lambda: collectives.all_reduce(eight).wait())
count("all_gather", lambda: dist.all_gather(halves, eight))
count("all_gather_into", lambda: dist.all_gather_into_tensor(torch.empty(16), eight))
count("reduce_scatter", lambda: dist.reduce_scatter_tensor(torch.empty(8), sixteen))
count("all_to_all", lambda: dist.all_to_all_single(torch.empty(16), sixteen))
count("broadcast", lambda: dist.broadcast(eight, 1))
count("scatter", lambda: dist.scatter(torch.empty(8), halves if rank == 1 else None, 1))
count("point to point", point_to_point)
count("barrier", dist.barrier)
counted = counter.collectives - counted
by_rank = [None, None]
dist.all_gather_object(by_rank, sent)
"""


def trained(strategy, width):
    """Train on two ranks; return the bytes of the parameters, and the ranks of the run's view.

    Two ranks have equal shards of each parameter.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
    data = TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    notebook = {"nn": nn, "model": model, "optimizer": optimizer}
    notebook["loader"] = DataLoader(data, batch_size=8)
    run = nbmgpu.run(TRAIN, notebook, strategy=strategy, gpus=2, cpu=True, steps=8)
    return sum(p.nbytes for p in model.parameters()), run.view.ranks


@pytest.mark.parametrize(
    ("strategy", "share"),
    [
        pytest.param("ddp", 1.0, id="ddp: all gradients"),
        pytest.param("fsdp", 1.5, id="fsdp: all gradients, and half of the parameters once"),
    ],
)
def test_bytes_of_a_step(strategy, share):
    small, large = (trained(strategy, width) for width in (32, 64))
    sent = []
    for parameters, ranks in (small, large):
        per_step = {count for rank in ranks for count in rank.measured.sent}
        assert len(per_step) == 1, "every rank sends the same in each of these steps"
        sent += per_step
        assert share * parameters <= sent[-1] < share * parameters + CHECKS
        for rank in ranks:
            assert {pace.sent for pace in rank.step_times} == per_step
    # Checks do not depend on the size of parameters.
    assert sent[1] - sent[0] == share * (large[0] - small[0])


def test_each_collective_counts_what_the_rank_hands_to_it():
    notebook = {}
    nbmgpu.run(EACH_COLLECTIVE, notebook, strategy="none", gpus=2, cpu=True)
    eight = 8 * 4
    both = {
        "all_reduce": eight, "shared": eight, "all_gather": eight, "all_gather_into": eight,
        "reduce_scatter": 2 * eight, "all_to_all": 2 * eight, "point to point": eight,
        "barrier": 0,
    }  # fmt: skip
    of_root = {"broadcast": eight, "scatter": 2 * eight}
    others = dict.fromkeys(of_root, 0)
    assert notebook["by_rank"] == [both | others, both | of_root]
    # A barrier is none that is counted, and a send is counted where it is sent.
    assert notebook["counted"] == len(both | of_root) - 1


def test_counting_takes_no_longer_than_a_small_operation_of_torch():
    tensors, options = [torch.ones(4)], dist.AllreduceOptions()

    def send(group, tensors, options):
        return None

    counted = communication.CommunicationCounter()._counting_first(send)
    one = torch.ones(1)

    def seconds(call):
        return timeit.timeit(call, number=1000)

    # Interleaved, as other processes disturb the times.
    times = [
        (
            seconds(lambda: counted(None, tensors, options)),
            seconds(lambda: send(None, tensors, options)),
            seconds(lambda: one.add_(one)),
        )
        for _ in range(50)
    ]
    counting, sending, adding = map(min, zip(*times, strict=True))
    assert counting - sending < adding
