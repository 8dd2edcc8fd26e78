"""The paper at its own recipe, judged by `docs/protocol.md`: from stored results to verdicts, a page and pictures.

`records.py` reads stored results into pairs, `tier1.py` judges the claims, `page.py` makes words of the verdicts, `pictures.py`
draws. `python -m recipes.reproduction` does it all.

`claims.py`, `claim_table.py`, `rules.py` and `verdicts.py` judge the comparisons of our own settings, by other rules (`rules.md`) than
`tier1.py`, `law.py` and `further.py`.
"""
