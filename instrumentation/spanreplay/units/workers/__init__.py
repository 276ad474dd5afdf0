"""Workers: where each one calls a task, a job or a handler, and how to replay it without a broker."""
