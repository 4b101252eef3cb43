"""The C code of the tree under the sanitizers of the compiler: ``python -m tests.support.sanitizers``."""
