"""The heads of the HiFi paper: scores, rankings and other measures; `select` reads and stores them."""
