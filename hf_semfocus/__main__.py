"""`python -m hf_semfocus` is the command `semfocus`."""

from .cli import main

main()
