"""Words of captions: splitting, concept groups, embedding influence, replacement."""

# What a noun is replaced by; `replacement.py` defines each. In the order of the RoCOCO paper's tables.
VARIANTS = ("same_concept", "diff_concept", "rand_voca", "danger")
# What a balanced alteration does to a caption (`balance.py`).
OPERATIONS = ("replace", "swap")
