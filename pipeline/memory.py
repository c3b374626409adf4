"""How the C library hands out the memory of tensors. Settings of glibc; nothing on another C library."""

from __future__ import annotations

import ctypes

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment of processes whose tensors shall lie on pages of 2 MiB, which most kernels give to those who ask.

Fewer pages are looked up faster: some 5 to 10 % of a trial's time.
"""
LARGE, KEPT_BYTES = 2**22, 2**26
"""From this size on a tensor has pages of its own: the holes of large ones would fragment the heap. And how much free memory is kept."""


def keep_freed_memory() -> None:
    """Have this process reuse the memory of freed tensors, where it would hand it back and fault in fresh pages for the next."""
    trim_threshold, mmap_threshold = -1, -3  # as malloc.h numbers them
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, LARGE)
        mallopt(trim_threshold, KEPT_BYTES)
