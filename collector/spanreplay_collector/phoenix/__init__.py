"""Sends spans on to Phoenix."""
