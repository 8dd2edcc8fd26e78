"""The paper at its own recipe, judged by `docs/protocol.md`: from stored results to verdicts, a page and pictures.

`records.py` reads stored results into pairs, `tier1.py` judges the claims, `page.py` makes words of the verdicts, `pictures.py`
draws. `python -m recipes.reproduction` does it all.
"""
