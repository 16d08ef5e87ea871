from runs_folder import runs_folder  # noqa: F401 - for all tests of this directory
