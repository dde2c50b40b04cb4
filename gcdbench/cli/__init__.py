"""The command line. Each command is a small file; heavy imports happen inside the command."""
