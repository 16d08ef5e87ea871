"""Builds the script that trains without nbmgpu: finds what it needs, and edits the loop."""

from __future__ import annotations

import ast
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from nbmgpu.errors import StrategyError, format_message

from .cell_code import imported_values, read_cell_code
from .deepspeed_calls import EngineOptions, check_gradients_end, check_unused, initialize
from .definitions import Item
from .loop_edits import COUNTS, SHARE, LoopEdits, evaluated_loaders, partial_numbers
from .loss_checks import check_losses
from .notes import notes_of
from .parameter_uses import check_engine_parameters, check_penalties, states_of_shards
from .placement import place
from .refusals import (
    REPLICATING,
    WITH_NBMGPU,
    check_code,
    check_models,
    check_objects,
    check_options,
    check_whole_batches,
)
from .request import ExportRequest
from .script import ScriptParts, cell_comment
from .script_names import check_devices, check_names, check_order, check_shares, check_zip
from .seeds import find_definitions
from .source_edits import SourceEdits
from .starting_states import END, StartingStates
from .statements import read_statements
from .strategy_calls import StrategyCalls, use_zero_optimizers
from .tracker_calls import edit_trackers
from .training_objects import TrainingObjects, assigned_name, find_training_objects
from .values import holds_parameters
from .wrapped_models import check_calls, check_changes, check_frozen


class PlainScript:
    """Builds the parts of one script."""

    def __init__(self, request: ExportRequest, path: Path) -> None:
        """Build the script of ``request``, to be written to ``path``.

        Raises:
            OptionError, StrategyError, CellError: it cannot be exported.
            SyntaxError: the cell is not valid Python.
        """
        check_options(request.options, request.on_gpu, request.restarted, request.nodes)
        self._request = request
        self._engine = EngineOptions()
        self._cell = read_cell_code(request.cell, request.transform)
        self._values = {**imported_values(self._cell.imports), **request.values}
        self._statements = read_statements(request.cells, request.transform)
        self._definitions = find_definitions(request, self._statements, self._values, self._cell)
        self._objects = self._find_objects()
        check_objects(self._objects, self._values)
        self._calls = StrategyCalls(
            request.options, request.world_size, request.on_gpu, self._reads_attributes()
        )
        items = self._definitions.items
        tree = ast.parse(self._cell.code)
        placement = place(items, self._cell.binds, tree)
        self.parts = ScriptParts(path.name, placement, dict(self._definitions.imports))
        self.parts.imports |= dict.fromkeys(self._cell.imports)
        self.parts.imports |= dict.fromkeys(self._calls.imports())
        self.parts.decorator = self._calls.decorator
        self.parts.notes += cell_comment(self._cell)
        self._edit_code()
        states = StartingStates(
            request, self._definitions, self._objects, self.parts, self._calls.shards_parameters
        )
        states.add(self._cell.code)
        self._add_wraps()
        divided, code = self._calls.divides_batches, self._cell.code
        self.parts.notes += notes_of(request, self._definitions, self._objects, code, divided)

    def _find_objects(self) -> TrainingObjects:
        names = [name for item in self._definitions.items for name in sorted(item.binds)]
        return find_training_objects(
            list(dict.fromkeys(names)), self._values, ast.parse(self._cell.code)
        )

    def _code_of_definitions(self) -> list[Item]:
        return [i for i in self._definitions.items if i.statement and i.statement.is_definition]

    def _reads_attributes(self) -> bool:
        """Return whether code reads attributes of a model that DistributedDataParallel lacks."""
        if self._request.options.strategy not in REPLICATING:
            return False
        models = [self._values[name] for name in self._objects.models]
        trees = [ast.parse(self._cell.code)]
        trees += [ast.parse(i.text) for i in self._code_of_definitions() if "class " not in i.text]
        others = {n for n, k in self._objects.kinds.items() if k != "module"}
        made = set(self._objects.made_models)
        for node in (node for tree in trees for node in ast.walk(tree)):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attr) if name not in others:
                    if attr in ("state_dict", "load_state_dict", "named_parameters"):
                        return True
                    lacks = not hasattr(DistributedDataParallel, attr) and attr != "training"
                    if lacks and (name in made or any(hasattr(model, attr) for model in models)):
                        return True
        return False

    @property
    def _codes(self) -> list[str]:
        """The source of the cell, and of the notebook's functions and classes that it needs."""
        return [self._cell.code, *(item.text for item in self._code_of_definitions())]

    # ------------------------------------------------------------------- code

    def _edit_code(self) -> None:
        strategy = self._request.options.strategy
        backward_passes, numbers = 0, 0
        for item in self._code_of_definitions():
            edits = self._edited(item.text)
            self.parts.texts[item.order] = edits.edits.result()
            backward_passes += edits.backward_passes
        self._edit_trackers()
        edits = self._edited(self._cell.code)
        if self._calls.divides_batches:
            edits.wrap_new_loaders()
        backward_passes += edits.backward_passes
        if strategy == "zero1":
            numbers += self._use_zero_optimizers(edits.edits)
        for node in ast.walk(edits.edits.tree):
            name = assigned_name(node)
            if name in self._objects.made_models and isinstance(node, ast.stmt):
                edits.edits.add_after(node, *self._calls.wrap(name, None))
        self.parts.helpers |= edits.used
        self.parts.cell = edits.edits.result()
        if strategy == "none":
            return
        if not backward_passes:
            what = "Neither the cell nor a function of the notebook that it calls has a backward()"
            instead = f"export the cell that trains; or {WITH_NBMGPU}"
            raise StrategyError(format_message(what, instead=instead))
        check_models(self._objects, self._values)
        self._check_code()
        if strategy == "zero1" and not numbers:
            what = "No construction of a torch.optim optimizer was found for zero1"
            raise StrategyError(format_message(what, instead=f"--strategy ddp; or {WITH_NBMGPU}"))

    def _edit_trackers(self) -> None:
        """Let rank 0 alone write with trackers that earlier cells have made."""
        if self._request.options.strategy == "none":
            return
        for item in self._definitions.items:
            if item.statement is None or item.statement.is_definition:
                continue
            edits = SourceEdits(item.text)
            self.parts.helpers |= edit_trackers(edits)
            if (text := edits.result()) != item.text:
                self.parts.texts[item.order] = text

    def _check_code(self) -> None:
        """Check what trains, in the cell and in the notebook's definitions."""
        cell, values, objects = ast.parse(self._cell.code), self._values, self._objects
        everything = [self._cell.code, *(item.text for item in self._definitions.items)]
        if self._calls.divides_batches:
            self._check_divided(cell)
        else:
            check_whole_batches(self._request.options.strategy, self._cell.code)
        check_changes(cell, objects)
        check_frozen(objects, values, "\n".join(everything))
        check_devices(everything)
        check_order(self._definitions, self._statements)
        bound = {name for item in self._definitions.items for name in item.binds}
        check_names({*self._cell.binds, *bound}, self._cell.reads)

    def _check_divided(self, cell: ast.Module) -> None:
        """Check that ranks with parts of a batch compute gradients that can be averaged."""
        values, objects = self._values, self._objects
        trees = [cell, *map(ast.parse, self._codes[1:])]
        for tree in trees:
            check_calls(tree, objects, values)
        check_losses(trees, values)
        check_zip(cell, objects.loaders)
        check_shares(trees, self._parts_of == "ShardedLoader")

    def _edited(self, code: str) -> LoopEdits:
        """Return the edits of one piece of code; a cell that distributes itself is left alone."""
        strategy = self._request.options.strategy
        edits = LoopEdits(SourceEdits(code), self._parts_of, self._waits_for_files(code))
        divided = self._calls.divides_batches
        check_code(edits.edits.tree, self._objects, self._values, divided)
        if strategy != "none":
            edits.edit()
            for statement in partial_numbers(edits.edits.tree) if divided else ():
                line = ast.unparse(statement).split("\n")[0]
                self.parts.notes.append(f"The {COUNTS.format(line=line)}.")
            names = {*self._objects.models, *self._objects.made_models}
            others = set(self._objects.kinds) - set(self._objects.models)
            if self._calls.shards_parameters:
                edits.replace_state_dicts(names, others)
                edits.gather_norms()
                self.parts.notes += states_of_shards(edits.edits.tree, self._objects)
            if self._calls.shards_parameters or strategy.startswith("deepspeed_stage_3"):
                check_penalties(edits.edits.tree, self._objects)
            if self._calls.has_engine:
                check_engine_parameters(edits.edits.tree, self._objects)
                self._engine.read(edits.edits, self._objects, self._values)
                edits.replace_state_dicts(names, others, "engine_state_dict")
        self.parts.helpers |= edits.used
        return edits

    def _waits_for_files(self, code: str) -> bool:
        """Return whether code may load files that the training saves; a dataset loads others."""
        trains = code == self._cell.code or "torch.save(" in code or "load_state_dict(" in code
        return trains and any("torch.save(" in each for each in self._codes)

    @property
    def _parts_of(self) -> str:
        """The class of the script of which ranks have parts; empty if there is none."""
        if not self._calls.divides_batches:
            return ""
        if self._objects.loaders or "DataLoader(" in self._cell.code:
            return "ShardedLoader"
        return "SharedBatch" if f"{SHARE}(" in self._cell.code else ""

    def _use_zero_optimizers(self, of_cell: SourceEdits) -> int:
        """Use ZeroRedundancyOptimizer in cell and definitions; return how many there are."""
        count, wrong = use_zero_optimizers(of_cell, self._values)
        for item in self._definitions.items:
            if item.statement is None or item.statement.is_definition:
                continue
            edits = SourceEdits(item.text)
            more, failed = use_zero_optimizers(edits, self._values)
            if more:
                self.parts.texts[item.order] = edits.result()
            count, wrong = count + more, wrong or failed
        if wrong:
            what = f"ZeroRedundancyOptimizer cannot be made from `{wrong}`"
            raise StrategyError(format_message(what, instead=f"--strategy ddp; or {WITH_NBMGPU}"))
        return count

    def _add_wraps(self) -> None:
        """Distribute models, before optimizers if those have to know, and loaders."""
        if self._request.options.strategy == "none":
            return
        for name in self._objects.models:
            place = END + 1
            if self._calls.shards_parameters:
                place = self._first_optimizer(name)
            lines = self._calls.wrap(name, self._values[name])
            if self._calls.has_engine:
                lines += self._initialize_engine(name)
            self.parts.wraps.append((place, "\n".join(lines)))
        definitions = {
            name: item.text for item in self._code_of_definitions() for name in item.binds
        }
        cell = ast.parse(self._cell.code)
        whole = evaluated_loaders(self._objects.loaders, cell, definitions)
        for name in self._objects.loaders:
            if name in whole or not self._calls.divides_batches:
                continue
            self.parts.wraps.append((END + 1, f"{name} = ShardedLoader({name})"))
            self.parts.helpers.add("ShardedLoader")
        for name in (*self._objects.models, *self._objects.made_models):
            taken = f'"{name}.pt"' in self._cell.code or f"'{name}.pt'" in self._cell.code
            file = f"{name}_trained.pt" if taken else f"{name}.pt"
            self.parts.results[file] = self._calls.state(name)
            self.parts.helpers.add("save_once")
            if self._calls.shards_parameters:
                self.parts.helpers.add("full_state_dict")
        if self._calls.unwraps and self._request.options.strategy in REPLICATING:
            self.parts.helpers.add("Replicated")

    def _initialize_engine(self, model: str) -> list[str]:
        """Return the statements that make DeepSpeed's engine, and use its helpers."""
        request, objects = self._request, self._objects
        check_gradients_end(self._codes)
        lines = initialize(model, objects, self._values, request.options.strategy, self._engine)
        if request.at_start:
            for name in objects.of_kind("optimizer"):
                check_unused(name, self._values[name])
        self.parts.helpers |= {"EngineOptimizer", "engine_state_dict"}
        # Names of the engine would begin with "module."
        if any(".named_parameters(" in code for code in self._codes):
            lines.append(f"{model}.named_parameters = {model}.module.named_parameters")
        return lines

    def _first_optimizer(self, model: str) -> float:
        """Return a position after a model is made and before what takes its parameters.

        These are the optimizers that train it, and lists of parameters for them.

        Raises:
            StrategyError: an optimizer is made at once with the model, or before.
        """
        made = self._definitions.last_order(model)
        parameters = {id(p) for p in self._values[model].parameters()}
        orders = [END + 2]
        for name in self._objects.of_kind("optimizer"):
            groups = self._values[name].param_groups
            if not any(id(p) in parameters for group in groups for p in group["params"]):
                continue
            self._check_made_after(name, self._definitions.first_order(name), model, made)
            orders.append(self._definitions.first_order(name))
        for item in self._definitions.items:
            if item.statement is None or model not in item.statement.reads_at_once:
                continue
            lists = [n for n in item.binds if holds_parameters(self._values.get(n))]
            if lists and model not in item.statement.changes:
                self._check_made_after(lists[0], item.order, model, made)
                orders.append(item.order)
        return min(min(orders) - 0.05, END + 1)

    def _check_made_after(self, name: str, order: float, model: str, made: float) -> None:
        if order <= made:
            what = f"`{name}` is made before `{model}` is complete, so it cannot have shards"
            instead = f"make `{name}` in a statement of its own, after `{model}`"
            raise StrategyError(format_message(what, instead=f"{instead}; or {WITH_NBMGPU}"))


def parts_of(request: ExportRequest, path: Path) -> ScriptParts:
    """Return the parts of the script of ``request``."""
    return PlainScript(request, path).parts
