"""`python -m hf_semfocus` is the command `semfocus`."""

from .cli.main import main

main()
