"""`spanreplay completion`: the shell's completion script."""

from __future__ import annotations

import click

HOW = {
    "bash": 'eval "$(spanreplay completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(spanreplay completion zsh)" in ~/.zshrc',
    "fish": "spanreplay completion fish > ~/.config/fish/completions/spanreplay.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(sorted(HOW)))
@click.pass_context
def completion_command(ctx: click.Context, *, shell: str) -> None:
    """Print the shell's completion script; commands, options and run ids complete.

    \b
    bash: eval "$(spanreplay completion bash)" in ~/.bashrc
    zsh:  eval "$(spanreplay completion zsh)" in ~/.zshrc
    fish: spanreplay completion fish > ~/.config/fish/completions/spanreplay.fish
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    root = ctx.find_root().command
    click.echo(completion(root, {}, "spanreplay", "_SPANREPLAY_COMPLETE").source())
