"""Files that a cell writes, opens or saves: rank 0 writes each of them once.

- ``writes``: patches what opens, renames and removes files; ``paths``: which paths are shared.
- ``shadows``: what other ranks write instead; ``created_folders``: folders that they may use.
- ``saves``, ``saved_files``: ``torch.save`` and checkpoints of libraries;
  ``saved_rows``: rows of tensors in them.
- ``open_files``: files that the notebook has open; ``atomic_writes``: replaces a file as a whole.
"""
