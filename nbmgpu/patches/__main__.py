"""``python -m nbmgpu.patches`` prints the patch table, compared with the installed libraries."""

from __future__ import annotations

import contextlib
import os
import sys

from .report import table_text

with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    text = table_text()  # libraries print when they are imported
sys.stdout.write(text + "\n")
