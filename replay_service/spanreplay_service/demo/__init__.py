"""The $190,000 incident: recorded, found, replayed, fixed and proved in one command; then one request among many.

python -m spanreplay_service.demo
"""
