"""Encoders, what training changed in them, and their export."""
