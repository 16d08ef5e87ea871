"""A run on disk: its folder, its typed events and the state that follows from them.

- ``run``: a run that any process may read; ``folder``: its files; ``record``: what never changes.
- ``events``: what ranks, launcher and kernel report. ``event_file`` writes and reads them,
  ``merged_events`` makes them fewer; ``event_lines``, ``event_types``, ``field_types`` check them.
- ``view``: the state that follows from events, with a ``rank_view`` for each rank, ``curve`` for
  metrics, ``usage`` over time, and ``clock`` for times of several machines; ``failure``: its error.
- ``checkpoint`` and the modules that begin with it: a checkpoint in the folder.
- ``replacement``, ``held_ranks``, ``stop_request``, ``undo_log``, ``reference``: what processes of
  a run leave for one another.
- ``shard_table``, ``profile_table``, ``stacks``, ``post_mortem``: what a rank reports in detail.
- ``labels``, ``folder_size``, ``cleaning``, ``deletion``: names, tags and notes; sizes; which runs
  are removed.
"""
