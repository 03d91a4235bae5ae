"""Functions of users, score_mod and mask_mod, as texts: called once with symbols, which record what it computes."""
