"""The mathematics of the HiFi paper: tensors and arrays in, arrays out."""
