"""The pytest plug-in and mocked models."""
