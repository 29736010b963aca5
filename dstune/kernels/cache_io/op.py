"""Cache writes and reads: which function serves which backend."""

from dstune.kernels.cache_io import cpu, reference
from dstune.kernels.later import Later

_TRITON = "dstune.kernels.cache_io.triton"
WRITE_KV = {
    "reference": reference.write_kv,
    "cpu": cpu.write_kv,
    "triton": Later(_TRITON, "write_kv"),
}
ROTATE_AND_WRITE_KV = {
    "reference": reference.rotate_and_write_kv,
    "cpu": cpu.rotate_and_write_kv,
    "triton": Later(_TRITON, "rotate_and_write_kv"),
}
WRITE_LATENT = {
    "reference": reference.write_latent,
    "cpu": cpu.write_latent,
    "triton": Later(_TRITON, "write_latent"),
}
ROTATE_AND_WRITE_LATENT = {
    "reference": reference.rotate_and_write_latent,
    "cpu": cpu.rotate_and_write_latent,
    "triton": Later(_TRITON, "rotate_and_write_latent"),
}
GATHER_LATENT = {
    "reference": reference.gather_latent,
    "cpu": cpu.gather_latent,
    "triton": Later(_TRITON, "gather_latent"),
}
