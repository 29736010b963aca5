"""The native code of the cpu backend: every operation's `cpu.cpp`, built at first use.

`lib()` is the loaded library; its attributes are the C functions, with argument types read from
the sources, so that a declaration stands in one place.
"""

from dstune.kernels.native.library import lib, load, use

__all__ = ["lib", "load", "use"]
