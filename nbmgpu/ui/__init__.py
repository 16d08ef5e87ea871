"""What people see of a run: the live panel and the summary that stays in the notebook.

Both draw what ``nbmgpu.report`` says about a ``nbmgpu.run.Run``; neither knows how ranks
are launched.  Nothing is imported here, so that loading the extension stays light.
"""
