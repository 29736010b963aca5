"""Causal attention over the paged cache (grouped-query and latent) and over dense tensors."""
