"""hifi: a command-line runner for fine-tuning encoders on GLUE, faithful to the HiFi and EH-FT papers."""

__version__ = "0.1.0"
