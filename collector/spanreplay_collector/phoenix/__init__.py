"""Forward spans to Phoenix."""
