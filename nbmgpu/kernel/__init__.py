"""One run from the kernel's side: read the cell, serialize, launch, monitor, write results back."""
