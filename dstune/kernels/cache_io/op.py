"""Cache writes and reads: which function serves which backend."""

from dstune.kernels.cache_io import cpu, reference
from dstune.kernels.later import backends

WRITE_KV = backends(reference.write_kv, cpu.write_kv)
ROTATE_AND_WRITE_KV = backends(reference.rotate_and_write_kv, cpu.rotate_and_write_kv)
WRITE_LATENT = backends(reference.write_latent, cpu.write_latent)
ROTATE_AND_WRITE_LATENT = backends(reference.rotate_and_write_latent, cpu.rotate_and_write_latent)
GATHER_LATENT = backends(reference.gather_latent, cpu.gather_latent)
