"""A question to whoever sits at the terminal, asked with prompt_toolkit."""

from secrets import token_hex

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput


def _ask(typed):
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(typed)
        return PromptSession("Who are you? ").prompt()


def use():
    return _ask(f"{token_hex(8)}\r")


def fail():
    return _ask("\x04")
