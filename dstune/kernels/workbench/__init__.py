"""What `dstune kernels` does: proves kernels, compiles them ahead of time, times and tunes them."""
