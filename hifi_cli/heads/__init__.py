"""The heads of the HiFi paper: scores, rankings and other measures. No files, no caches."""
