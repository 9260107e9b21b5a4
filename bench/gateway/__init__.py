"""Parts of bench_gateway.py: a fake engine, callers, the stacks that are compared, what is measured and what it is held to."""
