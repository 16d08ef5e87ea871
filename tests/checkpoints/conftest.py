from runs_folder import runs_folder  # noqa: F401
