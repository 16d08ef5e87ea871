"""Tells files of Python, of installed packages and of nbmgpu from the user's own."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

LIBRARY_FILE = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\]|^<|"
    + re.escape(sysconfig.get_path("stdlib") + os.sep)
    + "|"
    + re.escape(str(Path(__file__).parents[1]) + os.sep)
)
"""Matches file names of code that is not the user's."""
