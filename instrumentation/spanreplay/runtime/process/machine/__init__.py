"""Settings of a process that come from its machine: recorded, and the same in a replay on another one."""
