"""Choosing the next token of each sequence, with a stateless random generator."""
