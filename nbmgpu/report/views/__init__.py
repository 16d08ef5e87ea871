"""What the live panel and the run view of JupyterLab show: one view per module.

``base.PanelView`` is the interface, ``registry`` lists the built-in views, and ``external`` finds
those of other packages. ``labextension/src/view`` draws them.
"""
