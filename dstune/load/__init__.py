"""Load: arrivals and workload drawn beforehand, as a plan of requests that a target carries out."""
