"""The IPython front end: magics, completion, help and how errors are shown."""
