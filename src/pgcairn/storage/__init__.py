"""Statements, migrations, and one method per statement. The only layer that knows table and column names."""
