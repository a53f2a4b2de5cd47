"""The commands and their options. What a command does stands in a module or folder of its own."""

from __future__ import annotations

from typing import Annotated

import typer

import holdfast

from .demo.plan import Plan

app = typer.Typer(
    help="Distributed locks that say what they promise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Distributed locks that say what they promise."""


@app.command()
def demo(
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Write without the fence, and see money vanish.")] = False,
    workers: Annotated[int, typer.Option(min=2, max=16, help="Worker processes.")] = 4,
    batches: Annotated[int, typer.Option(min=2, max=1000, help="Payment batches to settle.")] = 40,
) -> None:
    """Freeze a worker past its lease and watch the fence refuse its write.

    Worker processes settle payments under locks, in a temporary directory.

    Exit status 0 if all went as it should, else 1.
    """
    from .demo.stage import run

    raise typer.Exit(run(Plan(workers=workers, batches=batches, fenced=not unsafe)))
