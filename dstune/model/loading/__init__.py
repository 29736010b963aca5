"""Loading: a model's name becomes its shape, its weights and its tokenizer (`open.py`)."""
