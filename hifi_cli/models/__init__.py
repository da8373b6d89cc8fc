"""Encoders: their files, families, parts, task heads, and kernels that compute them faster."""
