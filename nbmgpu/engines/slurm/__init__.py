"""Runs as jobs of Slurm: ``--engine slurm --nodes 2 --gpus 4``.

The kernel submits a job with ``sbatch``.  Its batch step is the head of the run, which starts a
node launcher on each node with ``srun``.  All of them, and the kernel, share the run folder.
"""
