"""A paper's claims: what they say, what runs decide, and the table of verdicts."""
