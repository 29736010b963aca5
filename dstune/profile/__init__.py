"""Profile: a YAML scenario becomes frozen, validated objects."""
