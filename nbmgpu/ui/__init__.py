"""What people see of a run: the live panel and the summary that stays in the notebook.

Both draw what ``content`` says about a ``nbmgpu.run.Run`` and its view; neither
knows how ranks are launched.  Nothing is imported here, so that loading the
extension stays light.
"""
