"""Same Bits: why the same deep-learning code gives different bits, and how to get the same ones.

Importing the package imports no framework and no widgets; ask for the module you need.
"""

__version__ = "0.1.0"
