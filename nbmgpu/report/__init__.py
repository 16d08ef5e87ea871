"""What is shown of a run, as plain data: status, curves, ranks, logs, failure causes.

Panel, summary and server share it. It imports no widget, no server and no torch. Front ends receive
``Parts``, the payloads of ``views``, and ``log_pages.LogPage`` and send ``log_pages.LogRequest``;
``tools/typescript_types.py`` generates their TypeScript types from these classes.
"""
