"""The papers' figures and our own: one module per kind computes its numbers as a tidy table and draws them."""
