"""``runs/<id>/metrics.csv``: all points of all metrics."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from nbmgpu.report.metrics_csv import CsvRequest

from .base_handler import Handler


class MetricsHandler(Handler):
    """The metrics of a run as CSV."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send the rows until there are no more, as an attachment."""
        read = self.services.opened.csv_page
        page = await self.services.run_in_thread(read, name, CsvRequest())
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{name}-metrics.csv"')
        self.write(page.text)
        while page.left:
            try:
                await self.flush()
            except StreamClosedError:
                return
            request = CsvRequest(page.last, page.columns)
            page = await self.services.run_in_thread(read, name, request)
            self.write(page.text)
        await self.finish(set_content_type="text/csv; charset=utf-8")
