"""Communication of ranks on one machine through the memory that they share.

- ``signals``: how a rank waits for others, and how they wake it.
- ``collectives``: all-reduce, all-gather and reduce-scatter of CPU tensors.
- ``number_stream``: numbers that ranks publish, and read from each other when they have arrived.
"""
