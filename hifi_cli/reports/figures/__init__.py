"""The papers' figures: what a figure's YAML says, and the drawing of its CSV; no torch, and nothing is computed here."""
