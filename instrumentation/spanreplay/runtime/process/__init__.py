"""The process of a run: its environment, standard streams, signals and parent."""
