"""RMSNorm, alone and fused with the residual addition before it."""
