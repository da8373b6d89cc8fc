"""The papers' figures and our own: each kind computes its numbers as a tidy table and draws them."""
