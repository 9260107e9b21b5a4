"""What a model needs of a GPU's memory: arithmetic without a GPU, from `config.json` and settings alone."""
