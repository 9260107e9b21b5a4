"""Parts of bench_overhead.py: a real engine with a switch for plugin and middleware, the door they tell, equal work, the pairs' sense."""
