"""Attack image-text models: find the smallest change of a caption, or of an image, that makes a right query wrong.

An attack is composed of small functions, as in TextAttack (Morris et al., arXiv 2005.05909):

    transformation    which words, letters or pixels may change              `changes`, `pixels`
    constraint        what keeps a caption false, or a perturbation small    `changes`, `pixels`
    goal              when a query is wrong                                  `scoring`
    search            in which order changes are tried                       `search`
    budget            changes of words or letters, queries, radius of a ball

A query is successfully attacked if it was right before and is wrong after. A tie with a wrong item counts as wrong.
"""
