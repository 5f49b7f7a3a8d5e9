"""The options of the larger commands, a file each: `add_arguments(parser)` and `run(args)`. Light to import."""
