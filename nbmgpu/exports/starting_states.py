"""The states in which models, optimizers and random generators start, loaded by a script."""

from __future__ import annotations

from typing import Any

import torch

from nbmgpu.errors import StrategyError, format_message

from .definitions import Definitions
from .refusals import TP, WITH_NBMGPU
from .request import ExportRequest
from .script import ScriptParts
from .training_objects import TrainingObjects
from .values import StoredValue, stored_shards, stored_state

END = 1e9
"""Position after all statements of the notebook."""


class StartingStates:
    """Adds to a script what loads the starting states."""

    def __init__(
        self,
        request: ExportRequest,
        definitions: Definitions,
        objects: TrainingObjects,
        parts: ScriptParts,
        sharded: bool,
    ) -> None:
        """Add to ``parts``; ``sharded`` tells whether the script shards parameters."""
        self._sharded = sharded
        self._request = request
        self._definitions = definitions
        self._objects = objects
        self._values = request.values
        self.parts = parts

    def add(self, cell: str) -> None:
        """Add the states of all objects that ``cell`` uses.

        Raises:
            StrategyError: the strategy cannot load one of them.
        """
        request = self._request
        if request.at_start:
            for name in self._objects.of_kind("module"):
                if not self._values[name].state_dict():
                    continue
                if not self._values[name].training:
                    self.parts.wraps.append(
                        (self._definitions.last_order(name) + 0.4, f"{name}.eval()")
                    )
                state = stored_state(name, self._values[name])
                self.parts.states.append((self._definitions.last_order(name) + 0.3, state))
            self._add_optimizer_states()
        self._seed(cell)

    def _has_new_rate(self, name: str) -> bool:
        """Return whether a group of an optimizer has another learning rate than at its start."""
        optimizer = self._values[name]
        rate = optimizer.defaults.get("lr")
        rates = {group.get("lr") for group in optimizer.param_groups}
        return len(optimizer.param_groups) == 1 and rates != {rate}

    def _add_optimizer_states(self) -> None:
        schedulers = [
            n for n in self._objects.of_kind("scheduler") if _has_stepped(self._values[n])
        ]
        optimizers = self._objects.of_kind("optimizer")
        for name in optimizers:
            if not (self._values[name].state or schedulers or self._has_new_rate(name)):
                continue
            whole = stored_state(name, self._values[name])
            if self._sharded:
                self.parts.states.append((END + 1.5, self._sharded_state(name)))
            else:
                self.parts.states.append((END + 0.5, whole))
        for name in schedulers:
            self.parts.states.append((END, stored_state(name, self._values[name])))
        for name in self._objects.of_kind("generator"):
            generator = self._values[name]
            state = _generator_state(f"{name}.set_state", name, generator)
            if state is not None:
                self.parts.states.append((self._definitions.last_order(name) + 0.3, state))
        for name in self._objects.loaders:
            generator = self._values[name].generator
            named = [self._values[n] for n in self._objects.of_kind("generator")]
            if generator is None or any(generator is each for each in named):
                continue
            state = _generator_state(f"{name}.generator.set_state", f"{name}_generator", generator)
            if state is not None:
                self.parts.states.append((END, state))

    def _sharded_state(self, name: str) -> StoredValue:
        """Return how to give shards of its states to an optimizer.

        Raises:
            StrategyError: it trains several models.
        """
        optimizer = self._values[name]
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for model in self._objects.models:
            if trained <= {id(p) for p in self._values[model].parameters()}:
                state = stored_shards(name, optimizer, model, self._values[model])
                self.parts.imports |= dict.fromkeys(state.imports)
                return state
        what = f"`{name}` has taken steps before the cell, and trains several models"
        instead = f"--strategy ddp or zero1, or make `{name}` in the cell; or {WITH_NBMGPU}"
        raise StrategyError(format_message(what, instead=instead))

    def _seed(self, cell: str) -> None:
        request = self._request
        seed = request.options.seed
        code = " ".join([cell, *(i.text for i in self._definitions.items)])
        if seed is not None:
            self.parts.wraps.append((END + 2, f"torch.manual_seed({seed})"))
            for module, call in (("random", "random.seed"), ("numpy", "np.random.seed")):
                if _mentions(code, module):
                    self.parts.wraps.append((END + 2, f"{call}({seed})"))
                    self._import_for(module)
            return
        states = request.random
        if states is None:
            if request.options.strategy == TP:
                self._seed_alike(code)
            return
        if states.torch is not None:
            self._load_random("torch.set_rng_state", "random_state", states.torch)
        if states.gpu is not None and request.on_gpu:
            self._load_random("torch.cuda.set_rng_state", "gpu_random_state", states.gpu)
        if states.python is not None and _mentions(code, "random"):
            self._load_random("random.setstate", "python_random_state", states.python)
            self._import_for("random")
        if states.numpy is not None and _mentions(code, "numpy"):
            self._load_random("np.random.set_state", "numpy_random_state", states.numpy)
            self._import_for("numpy")

    def _seed_alike(self, code: str) -> None:
        """Let all ranks draw the same numbers; torch's generators start alike in each process."""
        for module, call in (("random", "random.seed"), ("numpy", "np.random.seed")):
            if _mentions(code, module) and f"{call}(" not in code:
                self.parts.wraps.append((END + 2, f"{call}(0)  # alike on all ranks"))
                self._import_for(module)

    def _import_for(self, module: str) -> None:
        self.parts.imports["import random" if module == "random" else "import numpy as np"] = None

    def _load_random(self, function: str, file: str, state: Any) -> None:
        kept = state.clone() if isinstance(state, torch.Tensor) else state
        more = "" if isinstance(state, torch.Tensor) else ", weights_only=False"
        code = f'{function}(torch.load(DATA / "{file}.pt"{more}))'
        stored = StoredValue(code, file=f"{file}.pt", write=lambda path: torch.save(kept, path))
        self.parts.states.append((END + 2, stored))


def _mentions(code: str, module: str) -> bool:
    return ("random." in code) if module == "random" else ("np." in code or "numpy" in code)


def _has_stepped(scheduler: Any) -> bool:
    return bool(scheduler.last_epoch > 0)


def _generator_state(call: str, name: str, generator: torch.Generator) -> StoredValue | None:
    """Return how to restore a generator; None if it is as its seed makes it."""
    state = generator.get_state()
    fresh = torch.Generator().manual_seed(generator.initial_seed()).get_state()
    if torch.equal(state, fresh):
        return None
    code = f'{call}(torch.load(DATA / "{name}.pt"))'
    return StoredValue(code, file=f"{name}.pt", write=lambda path: torch.save(state, path))
