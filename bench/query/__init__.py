"""A store of ten million spans, a daemon over it, and what asks it."""
