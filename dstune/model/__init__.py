"""Model: architectures, loading, quantisation and tokenizers."""
