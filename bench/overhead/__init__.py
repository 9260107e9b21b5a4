"""Parts of bench_overhead.py: two real engines, the door that one of them tells, equal work for both, and what the pairs say."""
