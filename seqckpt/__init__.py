"""seqckpt."""
