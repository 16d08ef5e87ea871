"""What there is to show of a run, as plain data: words, numbers, curves, ranks, logs, causes.

Panel, summary and server all draw this; wording and arithmetic for people live here,
once.  No widget, no server and no torch: whoever shows a run brings those.  Front ends
get ``snapshot.Parts`` and ``logs.LogPage`` and send ``logs.LogRequest``; their TypeScript
is made from these classes by ``tools/typescript_types.py``.
"""
