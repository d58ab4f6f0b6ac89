"""Connections to PostgreSQL: the seam, its drivers, and the embedded server."""
