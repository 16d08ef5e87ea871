"""Views of other packages, found by entry points in the group ``nbmgpu.panel_views``.

The browser imports their ES modules, in the notebook's panel and in JupyterLab's run view. The
latter shows the views that are installed in the environment of the Jupyter server.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path

from nbmgpu.system.plugins import entry_points_in

from .base import PanelView, RunMoment

GROUP = "nbmgpu.panel_views"

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExternalView:
    """A view of another package: the name of its part, and the ES module that draws it."""

    name: str
    esm: str


class ExternalViews(PanelView):
    """The views of other packages; their payloads are parts of their own."""

    def payload(self, moment: RunMoment) -> list[ExternalView]:
        """Return the views, which never change."""
        return [view for view, _ in installed_views().values()]


@functools.cache
def installed_views() -> dict[str, tuple[ExternalView, type[PanelView]]]:
    """Return the views of other packages by name; one that cannot be loaded is logged."""
    found = {}
    for name, point in sorted(entry_points_in(GROUP).items()):
        try:
            cls = point.load()
            esm = cls.esm.read_text("utf-8") if isinstance(cls.esm, Path) else cls.esm
        except Exception:  # another package's error must not end the run
            LOG.exception("The panel view %r cannot be loaded, and is not shown", name)
        else:
            found[name] = ExternalView(name, esm), cls
    return found
