"""The contract of recordings for other languages: rules that judge exported spans, and cases that a client plays."""
