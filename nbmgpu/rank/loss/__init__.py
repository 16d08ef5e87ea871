"""How a loss counts samples, so that ranks can be weighed as one device would weigh them.

- ``reader``: walks from the loss to what reduces over samples; begin here.
- ``graph``: what it has found; ``path``: what divides and multiplies on the way.
- ``nodes``, ``reductions``: single nodes of autograd's graph.
- ``side_by_side``: losses that stand in one tensor: of tasks, or of single samples.
- ``sizes``: numbers in the graph that are sizes of the share.
- ``divisors``, ``size_or_constant``: those that may be one by chance, and who is asked.
- ``masked``: sums of which a mask leaves nothing.
- ``weights``: losses weighed before the backward pass, for engines that average by themselves.
- ``readable``: losses that the cell reads afterwards.
"""
