"""Widgets of a notebook: the panel of a run and the strategy picker.

They display reports (``nbmgpu.report``) and recommendations (``nbmgpu.advisor``), and do not
depend on how ranks are launched. Nothing is imported here, so that the extension loads quickly.
"""
