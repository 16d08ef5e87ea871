"""The Jupyter server extension: serves runs and devices to the browser.

It works while kernels are busy or dead, because it reads run folders (``nbmgpu.runs``) and builds
their reports (``nbmgpu.report``) itself. All routes are below ``<base url>nbmgpu/api/``. Only this
package requires jupyter_server.
"""
