"""Attaching to an engine that runs already: what is seen of it now, the line that adds more, and whether the parts are well."""
