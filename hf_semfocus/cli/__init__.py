"""The command `semfocus`: one file a command."""
