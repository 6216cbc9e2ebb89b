"""The judges of the exercises, one module for each chapter; check.py finds them by number."""
