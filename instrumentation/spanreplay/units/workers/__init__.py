"""The rows of workers: where each calls a task, a job or a handler, and how it is replayed without a broker."""
