"""The readers of data files: one module per kind of file; `file_formats.py` has the table of them."""
