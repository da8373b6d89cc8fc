"""The files of a run: their names, their types, and the only code that reads and writes them."""
