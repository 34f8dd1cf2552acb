"""A config's runs, each once, and the cells of the experiments that they fill."""
