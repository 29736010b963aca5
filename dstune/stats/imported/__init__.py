"""Stats: results of other load tools, read into dstune's figures so that a gate can judge them."""

from dstune.stats.imported.results import read_results

__all__ = ["read_results"]
