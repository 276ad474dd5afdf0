"""Which units of a process are kept, whole: the rules, the memory that holds a unit until its end, the counts."""
