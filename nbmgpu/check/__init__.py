"""Checks nbmgpu on the machine it runs on: ``python -m nbmgpu.check``.

Every check is a function that runs real cells on real ranks, compares or measures something, and
ends by itself.  Checks run in a process of their own, so a failing one does not stop the others.
"""
