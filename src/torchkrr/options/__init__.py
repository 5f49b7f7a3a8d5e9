"""The options of every command, a file each: `add_arguments(parser)` and `run(args)`. Light to import."""
