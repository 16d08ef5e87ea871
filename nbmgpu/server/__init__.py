"""The Jupyter server extension: runs and devices, whatever the kernels are doing.

It reads run folders (``nbmgpu.run``) and what there is to show of them (``nbmgpu.report``),
and hands both to the browser, under ``<base url>nbmgpu/api/``.  Nothing but this package
needs jupyter_server.
"""
