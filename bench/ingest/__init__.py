"""What bench_ingest.py is made of."""
