"""SwiGLU's gate: silu(gate) * up over a fused projection."""
