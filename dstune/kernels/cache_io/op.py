"""Cache writes and reads: which function serves which backend."""

from dstune.kernels.cache_io import cpu, reference

WRITE_KV = {"reference": reference.write_kv, "cpu": cpu.write_kv}
WRITE_LATENT = {"reference": reference.write_latent, "cpu": cpu.write_latent}
GATHER_LATENT = {"reference": reference.gather_latent, "cpu": cpu.gather_latent}
