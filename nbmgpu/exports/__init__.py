"""Exports a run: as a script for ``torchrun`` that needs no nbmgpu, and as a page of HTML.

- What is exported: ``request``; what cannot be: ``refusals``.
- The notebook's part of a script: ``statements``, ``definitions`` and ``values``.
- The distributed part: ``training_objects``; ``strategy_calls``, ``parallel_plan`` and
  ``deepspeed_calls``; ``loop_edits`` on top of ``source_edits``; ``helper_sources``.
- ``script`` assembles both; ``nbmgpu_script`` is the short form that calls nbmgpu.
- ``report_page`` writes the page.
"""
