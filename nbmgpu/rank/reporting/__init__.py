"""What a rank reports: metrics, progress, notices, output, failures and final measurements.

- ``recorder``: where the other packages report; ``notices``: their sentences.
- ``failures``, ``frame_capture``: an exception, and the variables of its frames.
- ``final_report``, ``shard_report``, ``step_digest``: what is known at the end.
- ``places``, ``layers``: names a line of the cell, or a layer of a model.
- ``stdio``: output; ``host_copy``: reads tensors of a GPU without waiting.
"""
