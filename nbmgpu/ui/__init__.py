"""What a notebook shows live: the panel of a run, a comparison, the strategy picker.

They draw what ``nbmgpu.report``, ``nbmgpu.comparison`` and ``nbmgpu.advisor`` say, and do not
know how ranks are launched.  Nothing is imported here, so that loading the extension stays light.
"""
