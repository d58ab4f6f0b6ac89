"""How large the next page of rows should be: bounded in rows and, by the page before, in bytes."""

from __future__ import annotations

from pgcairn.settings import Settings

# A first page is small, because many ask for one row and the size of rows is not known yet (guess).
_FIRST_PAGE_ROWS = 8


class PageSize:
    """The size of the pages of one reading.

    Attributes:
        rows: How many rows to ask for next.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.rows = min(_FIRST_PAGE_ROWS, settings.page_rows)

    def saw(self, rows: int, size_bytes: int) -> None:
        """Note what the last page held."""
        fitting = int(self._settings.page_bytes / max(1.0, size_bytes / max(1, rows)))
        self.rows = max(1, min(self.rows * 4, fitting, self._settings.page_rows))
