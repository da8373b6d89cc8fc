"""The fine-tuning methods, one file each."""
