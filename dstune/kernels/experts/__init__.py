"""The routed experts of a mixture-of-experts layer, all of a step's tokens in one call."""
