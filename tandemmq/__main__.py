"""``python -m tandemmq`` and the ``tandemmq`` command: starts cli."""


def main() -> None:
    """Run the command line; ends the process with the exit codes of docs/commands.md."""
    from tandemmq.cli import main as run

    run()


if __name__ == "__main__":
    main()
