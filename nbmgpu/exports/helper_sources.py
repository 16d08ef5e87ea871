"""The helpers of an exported script, as source that a reader can follow."""

from __future__ import annotations

SHARDED_LOADER = '''
class RankBatches:
    """Of each batch of indices that one device would load, this rank's part."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        batches = [list(self.batches)]
        dist.broadcast_object_list(batches)  # all ranks need the same order
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.sizes = [len(batch) for batch in batches[0]]
        for batch in batches[0]:
            yield batch[rank::world_size] or batch[:1]  # the latter counts with weight 0


class ShardedLoader:
    """A loader of which each rank loads its part: together, ranks have the batches of one device.

    `weight` is that of the newest batch in the mean over ranks. It is 1 where the batch size is
    a multiple of the number of ranks, and makes up for the rest elsewhere.
    """

    weight = 1.0

    def __init__(self, loader):
        self.loader = loader
        self.batches = RankBatches(loader.batch_sampler)
        self.shard = DataLoader(
            loader.dataset,
            batch_sampler=self.batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            persistent_workers=loader.persistent_workers,
            prefetch_factor=loader.prefetch_factor,
            generator=loader.generator,
        )

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        if not torch.is_grad_enabled():  # an evaluation: every rank sees all samples
            return iter(self.loader)
        return self.weighed(iter(self.shard))  # which draws a seed, as iter() of the loader does

    def weighed(self, batches):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for number, batch in enumerate(batches):
            size = self.batches.sizes[number]
            ShardedLoader.weight = len(range(rank, size, world_size)) * world_size / size
            yield batch
        ShardedLoader.weight = 1.0

    def __getattr__(self, name):
        return getattr(self.loader, name)
'''

SHARED_BATCH = '''
class SharedBatch:
    """A batch of which each rank has its part, to iterate over once.

    `weight` is that of the part in the mean over ranks: 1 where all parts have the same size.
    """

    weight = 1.0

    def __init__(self, *tensors, dim=0):
        self.tensors = tensors
        self.dim = dim

    def __iter__(self):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        parts, size = self.tensors, self.tensors[0].shape[self.dim]
        first, last = size * rank // world_size, size * (rank + 1) // world_size
        if torch.is_grad_enabled():  # in an evaluation, every rank sees all samples
            SharedBatch.weight = (last - first) * world_size / size
            length = max(last - first, 1)  # a rank without samples has one with weight 0
            parts = [each.narrow(self.dim, first, length) for each in self.tensors]
        yield parts if len(parts) > 1 else parts[0]
        SharedBatch.weight = 1.0
'''

MEAN_OVER_RANKS = '''
def mean_over_ranks(loss):
    """Return the mean over the whole batch of a mean over this rank's part of it."""
    mean = loss.detach() * ShardedLoader.weight / dist.get_world_size()
    dist.all_reduce(mean)
    return mean
'''

PRINT_ONCE = '''
def print_once(*args, **kwargs):
    """Print on rank 0 alone."""
    if dist.get_rank() == 0:
        print(*args, **kwargs)
'''

SAVE_ONCE = '''
def save_once(*args, **kwargs):
    """Save on rank 0 alone."""
    if dist.get_rank() == 0:
        torch.save(*args, **kwargs)
'''

LOAD_SAVED = '''
def load_saved(*args, **kwargs):
    """Load a file that rank 0 has saved; all ranks have to call it."""
    dist.barrier()  # until it is complete
    return torch.load(*args, **kwargs)
'''

FULL_STATE_DICT = '''
def full_state_dict(model):
    """Return the whole state of a sharded model on rank 0; all ranks have to call it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)
'''

LOAD_FULL_STATE_DICT = '''
def load_full_state_dict(model, state):
    """Load a whole state, which rank 0 has, into a sharded model."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)
'''

ENGINE_STATE_DICT = '''
def engine_state_dict(engine):
    """Return the whole state of an engine's model; all ranks have to call it."""
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        state = engine.module.state_dict()
        return {name: value.detach().cpu().clone() for name, value in state.items()}
'''

WHOLE_STATE_DICT = '''
def whole_state_dict(owner):
    """Return the whole state of a model on rank 0, and that of another object as it is."""
    return full_state_dict(owner) if isinstance(owner, torch.nn.Module) else owner.state_dict()
'''

STATE_DICT_OF = '''
def state_dict_of(owner):
    """Return the whole state of an engine's model, and that of another object as it is."""
    is_engine = isinstance(owner, deepspeed.DeepSpeedEngine)
    return engine_state_dict(owner) if is_engine else owner.state_dict()
'''

ENGINE_OPTIMIZER = '''
class EngineOptimizer(torch.optim.Optimizer):
    """The optimizer of a DeepSpeed engine, whose step is the engine's."""

    def __init__(self, engine):
        self.__setstate__(engine.basic_optimizer.__getstate__())
        self.engine = engine

    def step(self):
        self.engine.step()

    def zero_grad(self, set_to_none=True):
        self.engine.optimizer.zero_grad(set_to_none)
'''

SILENT_WRITER = '''
class SilentWriter:
    """Stands for a SummaryWriter on the other ranks: it takes all calls, and writes nothing."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
'''

REPLICATED = '''
class Replicated(DistributedDataParallel):
    """DistributedDataParallel with the attributes, names and state of the model itself."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def named_parameters(self, *args, **kwargs):
        return self.module.named_parameters(*args, **kwargs)

    def state_dict(self, *args, **kwargs):
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return self.module.load_state_dict(*args, **kwargs)
'''

HELPERS = {
    "ShardedLoader": SHARDED_LOADER,
    "SharedBatch": SHARED_BATCH,
    "mean_over_ranks": MEAN_OVER_RANKS,
    "mean_over_shared": MEAN_OVER_RANKS.replace("mean_over_ranks", "mean_over_shared").replace(
        "ShardedLoader", "SharedBatch"
    ),
    "print_once": PRINT_ONCE,
    "save_once": SAVE_ONCE,
    "load_saved": LOAD_SAVED,
    "full_state_dict": FULL_STATE_DICT,
    "load_full_state_dict": LOAD_FULL_STATE_DICT,
    "engine_state_dict": ENGINE_STATE_DICT,
    "whole_state_dict": WHOLE_STATE_DICT,
    "state_dict_of": STATE_DICT_OF,
    "EngineOptimizer": ENGINE_OPTIMIZER,
    "SilentWriter": SILENT_WRITER,
    "Replicated": REPLICATED,
}
"""Source by the name that a script uses."""

IMPORTS = {
    "ShardedLoader": "from torch.utils.data import DataLoader",
    "full_state_dict": (
        "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict"
    ),
    "load_full_state_dict": (
        "from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict"
    ),
    "Replicated": "from torch.nn.parallel import DistributedDataParallel",
}
"""What the helpers import."""
