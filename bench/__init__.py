"""The benchmarks: one file, one question. ``python -m bench list`` names them."""
