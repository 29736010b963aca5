"""dstune tunes and benchmarks LLM serving.

A profile becomes trials, a trial becomes load on a target, load becomes raw samples, samples
become statistics, statistics become a verdict or a recommendation, and that becomes a report.
"""

__version__ = "0.1.0"
