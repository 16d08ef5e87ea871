"""nbmgpu beside the tools that people use today: the same work in one interleaved run.

``make bench`` makes an environment of its own, with all of them, and writes RESULTS.md.
Nothing here is part of the package, and nothing asserts a time.
"""
