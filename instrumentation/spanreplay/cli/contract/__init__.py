"""Commands for those who write an SDK in another language."""
