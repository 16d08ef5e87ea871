"""Runs as TrainJobs of Kubeflow Trainer: ``--engine kubernetes --nodes 2 --gpus 4``.

The kernel creates a TrainJob, whose pods mount the volume claim that has the run folder.  The first
pod is the head of the run; each pod starts a node launcher.  The official ``kubernetes`` client
creates and reads it.  The ``kubeflow`` SDK would ask for more rights (to read runtimes), and tells
neither why a pod waits nor why it was lost, so both would be asked of that client all the same.
"""
