"""The options of a run: the table of flags, the parser and the validated value object."""
