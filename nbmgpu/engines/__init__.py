"""Engines: where the ranks of a run are placed, started, supervised and ended.

- ``base``: the interface of an engine; ``registry`` returns one by name.
- ``supervision``, ``termination``: watch ranks that an engine has started, and end them in stages.
- ``local``: ranks on this machine.
"""
