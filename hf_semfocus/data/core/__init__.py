"""What every task is made of: random words, digits, splits, the task contract and the rows' Arrow form."""
