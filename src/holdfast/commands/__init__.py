"""One module per command of the `holdfast` program, each with `run(arguments) -> exit code`."""
