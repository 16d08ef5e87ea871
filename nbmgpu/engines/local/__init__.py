"""How ranks are started, watched and ended.

- ``client``: the kernel's side; asks the launch server for a run.
- ``server``: a standing process that has torch imported and forks launchers.
- ``pages``, ``preload``: what the server does in between: memory that is quick to fork, libraries.
- ``launcher``: one process per run; starts the ranks, ends them all, outlives nobody.
- ``group``: the launcher's ranks, forked or under a cold torchrun.
- ``ending``: in which stages they are ended; ``leftovers``: what they leave behind, removed.
- ``inheritance``: environment, folder and paths of the notebook, as ranks take them on.
- ``processes``: children that die with their parent.
"""
