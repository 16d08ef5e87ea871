"""What ranks tell one another beside gradients, through the process group's store.

- ``shared``: small values from rank 0 to all.
- ``together``: have all ranks come to the same place of the cell?
- ``out_of_step``: ranks that wait for one another at different places.
"""
