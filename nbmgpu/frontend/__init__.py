"""The IPython front end: magics, Tab completion, help and tracebacks."""
