"""Benchmarks of nbmgpu and other tools: the same workloads, interleaved.

``make bench`` creates an environment with all tools and writes RESULTS.md.  This is not part of the
package, and no time is asserted.
"""
