"""What plugs the kernels into an engine; each module imports its engine, and nothing else imports it."""
