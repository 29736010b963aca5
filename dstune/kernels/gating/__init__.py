"""Choosing the experts of each token, as DeepSeek V2 (softmax) and V3 (sigmoid) do."""
