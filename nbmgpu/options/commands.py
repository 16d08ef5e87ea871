"""The subcommands of the line magic ``%mgpu``, for its dispatcher, Tab completion and help."""

from __future__ import annotations

COMMANDS = {
    "runs": "list the runs, newest first",
    "show": "show one run: its state, curves, notices and folder",
    "attach": "follow a run here, and write its results back",
    "stop": "stop a run; a second time, kill it without its results",
    "release": "write back what ranks hold since --hold, and end them; --discard, --overwrite",
    "debug": "look into the variables of a rank that raised an exception; --rank N",
    "clean": "show what runs take on the disk; --older 7d, --larger 1G: remove them",
    "export": "write a run as a script for torchrun: %mgpu export RUN train.py; --report: as HTML",
    "info": "show devices, versions and what is missing; --patches: what is replaced in libraries",
    "engine": "list engine profiles; add NAME --engine ..., remove NAME",
    "advise": "recommend a strategy for a model: %mgpu advise model optimizer loader",
    "pick": "choose a strategy from a table of memory and speed",
}
"""The subcommands of the line magic ``%mgpu``."""

INFO_OPTIONS = ("--patches",)
"""Options of ``%mgpu info``."""
