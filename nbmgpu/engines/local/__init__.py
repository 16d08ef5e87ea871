"""The engine for ranks on this machine, started in milliseconds because torch is imported already.

- ``engine``: the ``Engine``; storage is memory that ranks map, liveness is the launcher's pid.
- ``client``: the kernel's side of the fork server; asks it for runs.
- ``fork_server``: a process that has torch imported and forks one launcher per run.
- ``huge_pages``, ``preload``: what the fork server does while idle: memory that forks quickly,
  libraries that the notebook has imported.
- ``guard``: the parent of the launcher of a run that outlives the kernel.
- ``launcher``: one process per run; starts the ranks, supervises them, and never outlives them.
- ``processes``: its ranks, forked from it or started by torchrun.
- ``cleanup``: removes what ranks leave behind.
- ``process_environment``: environment variables, limits and cores of the notebook, for its ranks.
"""
